//! Drawing: rectangles, lines, dots and text as SVG, in colours that suit a light and a dark page.

use std::fmt::Write;

/// A picture that grows.
pub(super) struct Picture {
    width: f64,
    height: f64,
    body: String,
}

/// Where a text stands to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Colours by name: ours, limits, peers in order, and what is only there to read by.
const STYLE: &str = "\
    text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-size:15px;font-weight:600}\
    .small{font-size:11px;fill:#59636e}.page{fill:#fff}.grid{stroke:#d1d9e0}.axis{stroke:#59636e}\
    .us{fill:#0969da;stroke:#0969da}.limit{fill:#8c959f;stroke:#8c959f}.bare{fill:#57606a;stroke:#57606a}\
    .p0{fill:#bc4c00;stroke:#bc4c00}.p1{fill:#8250df;stroke:#8250df}.p2{fill:#1a7f37;stroke:#1a7f37}\
    .p3{fill:#bf3989;stroke:#bf3989}.p4{fill:#9a6700;stroke:#9a6700}.p5{fill:#cf222e;stroke:#cf222e}\
    .p6{fill:#1b7c83;stroke:#1b7c83}.line{fill:none;stroke-width:2}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.page{fill:#0d1117}\
    .grid{stroke:#3d444d}.axis{stroke:#9198a1}.us{fill:#58a6ff;stroke:#58a6ff}\
    .limit{fill:#7d8590;stroke:#7d8590}.bare{fill:#c9d1d9;stroke:#c9d1d9}.p0{fill:#f0883e;stroke:#f0883e}.p1{fill:#bc8cff;stroke:#bc8cff}\
    .p2{fill:#3fb950;stroke:#3fb950}.p3{fill:#f778ba;stroke:#f778ba}.p4{fill:#d29922;stroke:#d29922}\
    .p5{fill:#ff7b72;stroke:#ff7b72}.p6{fill:#39c5cf;stroke:#39c5cf}.line{fill:none}}";

impl Picture {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    pub(super) fn bar(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        let width = width.max(1.0);
        self.add(&format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        ));
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64), width: f64) {
        self.add(&format!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke-width=\"{width}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(&format!("<polyline class=\"{class} line\" points=\"{}\"/>", points.join(" ")));
    }

    pub(super) fn dot(&mut self, class: &str, (x, y): (f64, f64)) {
        self.add(&format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"));
    }

    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.add(&format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    fn add(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    /// The whole, for a reader who cannot see it called `title`.
    pub(super) fn finish(self, title: &str) -> String {
        let Self { width, height, body } = self;
        let mut svg = String::new();
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n\
             <style>{STYLE}</style>\n<rect class=\"page\" width=\"{width}\" height=\"{height}\"/>"
        )
        .expect("writing to a string");
        svg.push_str(&body);
        svg.push_str("</svg>\n");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_out_of_the_picture() {
        let mut picture = Picture::new(10.0, 10.0);
        picture.text("small", (0.0, 0.0), Anchor::Start, "a < b & c");
        assert!(picture.finish("t").contains(">a &lt; b &amp; c</text>"));
    }
}
