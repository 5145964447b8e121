//! The code blocks of a Markdown document, and the rule that each of them can be tested.

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// One fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of the opening fence, from 1.
    pub line: usize,
    /// What it is written in.
    pub language: Language,
    /// What stands between the fences.
    pub text: String,
}

/// What a block is written in, and so what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `sh`: run as a script that must succeed.
    Shell,
    /// `console`: commands after `$ `, each followed by what it must print.
    Console,
    /// `rust`: compiled, and unless `no_run` also run, by rustdoc.
    Rust,
    /// `json`: must parse.
    Json,
    /// `text` and the like: nothing to test.
    Data,
}

/// The blocks of `text`.
///
/// # Errors
/// A block could escape its test: it has no language, one that we don't know, or is Rust marked
/// `ignore`.
pub fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (event, span) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let line = text[..span.start].matches('\n').count() + 1;
                let info = match &kind {
                    CodeBlockKind::Fenced(info) => info.trim(),
                    CodeBlockKind::Indented => {
                        return Err(format!("line {line}: fence this block"));
                    }
                };
                let language = language(info).map_err(|why| format!("line {line}: {why}"))?;
                open = Some(Block { line, language, text: String::new() });
            }
            Event::Text(part) => {
                if let Some(block) = &mut open {
                    block.text.push_str(&part);
                }
            }
            Event::End(TagEnd::CodeBlock) => found.extend(open.take()),
            _ => {}
        }
    }
    Ok(found)
}

fn language(info: &str) -> Result<Language, String> {
    let mut words = info.split([',', ' ']).filter(|word| !word.is_empty());
    match words.next() {
        Some("sh") => Ok(Language::Shell),
        Some("console") => Ok(Language::Console),
        Some("rust") if words.any(|word| word.starts_with("ignore")) => {
            Err("rust,ignore is never compiled: make it compile, or text".to_owned())
        }
        Some("rust") => Ok(Language::Rust),
        Some("json") => Ok(Language::Json),
        Some("text" | "toml" | "ini" | "lua" | "sql" | "js" | "python" | "mermaid" | "yaml") => {
            Ok(Language::Data)
        }
        Some(word @ ("bash" | "shell" | "zsh")) => {
            Err(format!("`{word}`: say sh for a script, console for a transcript"))
        }
        Some(word) => Err(format!("`{word}`: a language that no test knows")),
        None => Err("the block has no language: sh, console, rust, json, text, …".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_line_language_and_text() {
        let text = "# Title\n\n```sh\na\nb\n```\n\n- item\n\n  ```console\n  $ c\n  ```\n";
        let expected = [
            Block { line: 3, language: Language::Shell, text: "a\nb\n".to_owned() },
            Block { line: 10, language: Language::Console, text: "$ c\n".to_owned() },
        ];
        assert_eq!(blocks(text).unwrap(), expected);
    }

    #[test]
    fn a_block_that_would_escape_its_test_is_refused_with_its_line() {
        for info in ["", "bash", "rust,ignore", "rust ignore", "cobol"] {
            let problem = blocks(&format!("text\n\n```{info}\nx\n```\n")).unwrap_err();
            assert!(problem.starts_with("line 3: "), "{info}: {problem}");
        }
        assert!(blocks("text\n\n    indented\n").is_err());
    }

    #[test]
    fn attributes_of_rust_blocks_are_left_to_rustdoc() {
        let found = blocks("```rust,no_run\nx\n```\n").unwrap();
        assert_eq!(found[0].language, Language::Rust);
    }
}
