//! Tables in our documents are the results that are kept beside them, and nothing else.

use holdtight_bench::{draw, refreshed, results};

#[test]
fn tables_in_the_documents_are_made_of_the_results() {
    for (path, before, after) in refreshed(&results().unwrap()).unwrap() {
        let name = path.display();
        assert!(before == after, "{name} is out of date: cargo xtask bench --publish");
    }
}

#[test]
fn plots_are_made_of_the_results() {
    let bench = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for plot in draw(&results().unwrap()) {
        let kept = std::fs::read_to_string(bench.join(plot.file)).unwrap_or_default();
        assert!(kept == plot.svg, "{} is out of date: cargo xtask bench --publish", plot.file);
    }
}
