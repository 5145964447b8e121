//! A check that every local link in our Markdown leads to a file, and every `#place` in it to a
//! heading.
//!
//! Addresses on the network are left alone: a build must not depend on other people's servers.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::process::Outcome;
use crate::tree::{files, read, relative};
use crate::workspace::Workspace;

/// What one document offers and asks for.
#[derive(Debug, Default)]
struct Page {
    anchors: Vec<String>,
    /// Line and target of each link and image.
    links: Vec<(usize, String)>,
}

pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let mut pages = BTreeMap::new();
    for path in files(workspace, &["md"])? {
        let page = Page::parse(&read(&path)?);
        pages.insert(path, page);
    }
    let mut broken = Vec::new();
    for (path, page) in &pages {
        for (line, target) in &page.links {
            if let Err(why) = resolve(&workspace.root, &pages, path, target) {
                broken.push(format!("  {}:{line}: {target}: {why}", relative(workspace, path)));
            }
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(format!("broken links:\n{}", broken.join("\n"))) }
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        let mut seen: HashMap<String, usize> = HashMap::new();
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
        for (event, span) in Parser::new_ext(text, options).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = text[..span.start].matches('\n').count() + 1;
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().unwrap_or_default());
                    let before = seen.entry(slug.clone()).or_default();
                    page.anchors.push(match *before {
                        0 => slug,
                        n => format!("{slug}-{n}"),
                    });
                    *before += 1;
                }
                _ => {}
            }
        }
        page
    }
}

/// The name that forges and rustdoc's readers give a heading: lower case, no punctuation, hyphens
/// for spaces.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().flat_map(char::to_lowercase);
    let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn resolve(
    root: &Path,
    pages: &BTreeMap<PathBuf, Page>,
    from: &Path,
    target: &str,
) -> Result<(), &'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, place) = match target.split_once('#') {
        Some((path, place)) => (path, Some(place)),
        None => (target, None),
    };
    let path = match path {
        "" => from.to_owned(),
        _ if path.starts_with('/') => normal(root, Path::new(path.trim_start_matches('/'))),
        _ => normal(from.parent().unwrap_or(root), Path::new(path)),
    };
    if !path.starts_with(root) {
        return Err("leads out of the repository");
    }
    if !path.exists() {
        return Err("no such file");
    }
    match (place, pages.get(&path)) {
        (Some(place), Some(page)) if !page.anchors.iter().any(|anchor| anchor == place) => {
            Err("no such heading")
        }
        _ => Ok(()),
    }
}

/// `path` seen from `base`, without `.` and `..`.
fn normal(base: &Path, path: &Path) -> PathBuf {
    let mut result = base.to_owned();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                result.pop();
            }
            Component::Normal(name) => result.push(name),
            _ => {}
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# What is `promised`?\n\nSee [here](a.md#x) and\n![plot][p].\n\n\
        ```sh\n[no](link.md)\n```\n\n`[no](link)`\n\n## Twice\n\n## Twice\n\n[p]: p.svg\n";

    #[test]
    fn links_are_found_with_their_lines_and_not_in_code() {
        let page = Page::parse(TEXT);
        assert_eq!(page.links, [(3, "a.md#x".to_owned()), (4, "p.svg".to_owned())]);
    }

    #[test]
    fn headings_are_named_as_forges_name_them() {
        assert_eq!(Page::parse(TEXT).anchors, ["what-is-promised", "twice", "twice-1"]);
    }

    #[test]
    fn a_link_is_followed_from_its_own_directory_and_to_its_heading() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (page, other) = (root.join("docs/page.md"), root.join("Cargo.toml"));
        let pages = BTreeMap::from([(page.clone(), Page::parse(TEXT)), (other, Page::default())]);
        let follow = |target| resolve(root, &pages, &page, target);
        assert_eq!(follow("../Cargo.toml"), Ok(()));
        assert_eq!(follow("/Cargo.toml"), Ok(()));
        assert_eq!(follow("https://example.org/gone"), Ok(()));
        assert_eq!(follow("Cargo.toml"), Err("no such file"));
        assert_eq!(follow("../Cargo.toml#here"), Err("no such heading"));
        assert_eq!(follow("../../../etc"), Err("leads out of the repository"));
    }
}
