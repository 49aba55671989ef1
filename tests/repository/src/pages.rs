//! The code blocks of a page, and what runs each block with commands.
//!
//! A block `sh` runs on a cluster in memory, in the order of the page, by the test `tutorials`. These words after `sh` change that:
//!
//! | word | the block |
//! |---|---|
//! | `setup` | runs in both terminals, in the root of the repository; the other blocks then run in an empty folder |
//! | `dev` | runs in the first terminal, and serves the cluster until the page ends |
//! | `fails` | must fail |
//! | `cluster` | needs a cluster with kubelets, so it needs a note |
//!
//! An HTML comment right before a block is its note. `<!-- run by: TEST -->` names the test that runs the block, and
//! `<!-- not run: REASON -->` says why no test runs it. A comment that begins with a line `dev` or `prepare` has commands that a
//! reader does not need: they start the cluster, or make what the next block expects.

/// The words for blocks with commands. A block with any other word has no commands.
const SHELLS: [&str; 6] = ["sh", "bash", "zsh", "shell", "console", "powershell"];

/// One code block of a page, or one comment with commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The line on which the block begins, from 1.
    pub line: usize,
    /// The words after the fence, such as `sh fails`.
    pub kind: String,
    /// The lines of the block, without the indentation of the fence.
    pub text: String,
    /// The comment right before the block.
    pub note: Option<String>,
    /// True for a comment with commands, which a reader does not see.
    pub is_hidden: bool,
}

impl Block {
    /// Returns true if a reader takes the block for commands.
    pub fn has_commands(&self) -> bool {
        let language = self.kind.split([' ', ',']).next().unwrap_or_default();
        let prompts = || ["", "text"].contains(&language) && self.text.lines().any(|line| line.starts_with("$ "));
        !self.is_hidden && (SHELLS.contains(&language) || prompts())
    }

    /// Returns the test that runs the block, or `None` if its note names none.
    pub fn test(&self) -> Option<&str> {
        self.note.as_deref()?.strip_prefix("run by: ")
    }

    /// Returns the reason why no test runs the block, or `None` if its note has none.
    pub fn reason(&self) -> Option<&str> {
        self.note.as_deref()?.strip_prefix("not run: ")
    }

    /// Returns the second word of a block that runs in memory: `setup`, `dev`, `fails`, or nothing. Returns `None` for other blocks.
    pub fn in_memory(&self) -> Option<&str> {
        let word = match self.kind.as_str() {
            "sh" => "",
            "sh setup" => "setup",
            "sh dev" => "dev",
            "sh fails" => "fails",
            _ => return None,
        };
        (self.test().is_none() && self.reason().is_none()).then_some(word)
    }
}

/// Returns the lines until `ends`, which takes the iterator beyond the end.
fn until<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>, ends: impl Fn(&str) -> bool) -> Vec<&'a str> {
    lines.map(|(_, line)| line).take_while(|line| !ends(line)).collect()
}

/// Returns all code blocks of a page, and its comments with commands, in their order.
pub fn blocks(page: &str) -> Vec<Block> {
    let (mut found, mut note) = (Vec::new(), None);
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let (line_number, bare) = (index + 1, line.trim_start());
        if let Some(kind) = bare.strip_prefix("```") {
            let indent = line.len() - bare.len();
            let text = until(&mut lines, |line| line.trim() == "```");
            let text: Vec<&str> = text.iter().map(|line| line.get(indent..).unwrap_or_default()).collect();
            let (kind, text) = (kind.trim().to_owned(), text.join("\n"));
            found.push(Block { line: line_number, kind, text, note: note.take(), is_hidden: false });
        } else if let Some(comment) = bare.strip_prefix("<!--") {
            let comment = match comment.split_once("-->") {
                Some((comment, _)) => comment.trim().to_owned(),
                None => [vec![comment.trim()], until(&mut lines, |line| line.trim() == "-->")].concat().join("\n"),
            };
            let hidden = |kind: &str, text: &str| Block {
                line: line_number,
                kind: kind.to_owned(),
                text: text.to_owned(),
                note: None,
                is_hidden: true,
            };
            match comment.split_once('\n') {
                Some(("dev", text)) => found.push(hidden("sh dev", text)),
                Some(("prepare", text)) => found.push(hidden("sh", text)),
                _ => note = Some(comment),
            }
        } else if !bare.is_empty() {
            note = None;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_notes_and_comments_may_have_commands() {
        let page = "Text.\n\n```sh setup\na\n```\n<!-- not run: needs a node -->\n\n```sh\nb\n```\n1. item\n\n   <!-- run by: t -->\n   \
                    ```sh cluster\n   c\n     d\n   ```\n<!-- prepare\ne\nf\n-->\n<!-- a note -->\ntext\n```text\n$ g\n```\n";
        let found = blocks(page);
        let shown: Vec<_> = found.iter().map(|block| (block.line, block.kind.as_str(), block.text.as_str())).collect();
        let expected = [
            (3, "sh setup", "a"),
            (8, "sh", "b"),
            (14, "sh cluster", "c\n  d"),
            (18, "sh", "e\nf"),
            (24, "text", "$ g"),
        ];
        assert_eq!(shown, expected);
        let memory: Vec<_> = found.iter().map(Block::in_memory).collect();
        assert_eq!(memory, [Some("setup"), None, None, Some(""), None]);
        assert_eq!(
            (found[1].reason(), found[2].test(), found[4].note.as_deref()),
            (Some("needs a node"), Some("t"), None)
        );
        assert_eq!(found.iter().map(Block::has_commands).collect::<Vec<_>>(), [true, true, true, false, true]);
    }
}
