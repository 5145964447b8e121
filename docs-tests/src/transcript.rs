//! Transcripts: commands after `$ `, continued after `> `, each followed by what it prints on
//! either stream.
//!
//! In what is expected, `...` stands for anything within a line, and alone on a line for any number
//! of lines.

/// One command and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// What is typed, possibly over several lines.
    pub command: String,
    /// What is to appear, with its wildcards.
    pub expected: String,
}

/// The wildcard.
const ANY: &str = "...";

/// Reads a transcript.
///
/// # Errors
/// It does not begin with a command.
pub fn exchanges(text: &str) -> Result<Vec<Exchange>, String> {
    let mut found: Vec<Exchange> = Vec::new();
    for line in text.lines() {
        let prompt = line.strip_prefix("$ ").or_else(|| (line == "$").then_some(""));
        match (prompt, found.last_mut()) {
            (Some(command), _) => {
                let command = command.to_owned();
                found.push(Exchange { command, expected: String::new() });
            }
            (None, None) => {
                return Err(format!("a transcript begins with `$ `, not with `{line}`"));
            }
            (None, Some(last)) => match line.strip_prefix("> ") {
                Some(more) if last.expected.is_empty() => {
                    last.command.push('\n');
                    last.command.push_str(more);
                }
                _ => {
                    last.expected.push_str(line);
                    last.expected.push('\n');
                }
            },
        }
    }
    Ok(found)
}

/// Whether `actual` is what `expected` describes. Spaces at the end of a line do not count.
pub fn matches(expected: &str, actual: &str) -> bool {
    let expected: Vec<&str> = expected.trim_end().lines().map(str::trim_end).collect();
    let actual: Vec<&str> = actual.trim_end().lines().map(str::trim_end).collect();
    // reach[i]: the lines of `expected` so far can account for exactly the first i lines of
    // `actual`.
    let mut reach = vec![false; actual.len() + 1];
    reach[0] = true;
    for pattern in expected {
        let mut next = vec![false; actual.len() + 1];
        for place in 0..=actual.len() {
            next[place] = if pattern == ANY {
                reach[..=place].contains(&true)
            } else {
                place > 0 && reach[place - 1] && line_matches(pattern, actual[place - 1])
            };
        }
        reach = next;
    }
    reach[actual.len()]
}

/// The fixed parts of `pattern` stand in `line` in order, the first at its start and the last at
/// its end.
fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((first, rest)) = pattern.split_once(ANY) else { return pattern == line };
    let Some(mut line) = line.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split(ANY).collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match line.find(part) {
            Some(place) => line = &line[place + part.len()..],
            None => return false,
        }
    }
    line.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(command: &str, expected: &str) -> Exchange {
        Exchange { command: command.to_owned(), expected: expected.to_owned() }
    }

    #[test]
    fn commands_and_answers_are_told_apart() {
        let text = "$ status a\nheld by x\nfor 3 s\n\n$ run a \\\n>   -- true\n$ echo $?\n0\n";
        let expected = [
            exchange("status a", "held by x\nfor 3 s\n\n"),
            exchange("run a \\\n  -- true", ""),
            exchange("echo $?", "0\n"),
        ];
        assert_eq!(exchanges(text).unwrap(), expected);
    }

    #[test]
    fn a_quoted_line_in_an_answer_is_no_continuation() {
        let found = exchanges("$ cat\nsaid:\n> yes\n").unwrap();
        assert_eq!(found, [exchange("cat", "said:\n> yes\n")]);
    }

    #[test]
    fn a_transcript_that_begins_with_an_answer_is_refused() {
        assert!(exchanges("held\n$ true\n").is_err());
    }

    #[test]
    fn a_wildcard_in_a_line_stands_for_anything_in_it() {
        assert!(matches("fence ... of ...\n", "fence 17 of demo\n"));
        assert!(matches("pid=...", "pid="));
        assert!(!matches("fence ... of demo", "fence 17 of others"));
        assert!(!matches("...a", "ab"));
        assert!(!matches("ab...ba", "aba"), "fixed parts do not overlap");
    }

    #[test]
    fn a_wildcard_alone_stands_for_any_number_of_lines() {
        for actual in ["a\nz", "a\nb\nz", "a\nb\nc\nz"] {
            assert!(matches("a\n...\nz", actual), "{actual:?}");
        }
        assert!(!matches("a\n...\nz", "a\nb"));
        assert!(matches("...", ""));
        assert!(matches("...\nb\n...\nb", "b\nb\nb"));
    }

    #[test]
    fn without_wildcards_every_line_counts() {
        assert!(matches("a  \nb\n\n", "a\nb\n"));
        assert!(!matches("a\nb", "a\nb\nc"));
        assert!(!matches("", "noise"));
        assert!(!matches("a", ""));
    }
}
