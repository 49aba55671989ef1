//! What a container's command would do, read off its text; nothing is run.
//!
//! The script of a task says it in notes, `# sim: sleep SECONDS`, `# sim: output TEXT`, `# sim: exit CODE`, and of a check
//! `# sim: message TEXT`, what it writes to `/dev/termination-log`. The command of any other container is read as a small
//! shell: `sleep`, `exit`, `true`, `false`, `echo` and `set -e`, joined by `;`, `&&`, `||` or newlines. A command with
//! anything else in it does nothing and ends well at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::Container;

/// What the kubelet takes of a termination message.
const MOST_MESSAGE: usize = 4096;
/// What the kubelet takes of a log in its place.
const MOST_LOG: usize = 2048;
/// Where a container leaves its termination message unless it says otherwise.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// A command that sleeps for longer sleeps as long as the world lives.
const LONGEST: f64 = 1e9;

/// What a script would do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Deed {
    pub(crate) sleep: Duration,
    pub(crate) output: String,
    /// What it writes as its termination message.
    pub(crate) message: String,
    pub(crate) exit: i32,
}

impl Deed {
    /// Reads the notes in a script that are for the simulation.
    pub(crate) fn read(script: &str) -> Self {
        let mut deed = Self::default();
        for line in script.lines().filter_map(|line| line.trim().strip_prefix("# sim: ")) {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("sleep", text) => deed.sleep += seconds(text.trim()).unwrap_or_default(),
                ("output", text) => deed.output += &format!("{text}\n"),
                ("message", text) => deed.message += &format!("{text}\n"),
                ("repeat", count) => deed.output = deed.output.repeat(count.trim().parse().unwrap_or(1)),
                ("exit", code) => deed.exit = code.trim().parse().unwrap_or(1),
                _ => {}
            }
        }
        deed
    }

    /// Reads the command of a container.
    pub(crate) fn of(container: &Container) -> Self {
        let words: Vec<&str> = [&container.command, &container.args]
            .into_iter()
            .flat_map(|list| list.iter().flatten().map(String::as_str))
            .collect();
        let script = match words.iter().position(|word| is_script_flag(word)) {
            Some(flag) => words.get(flag + 1).copied().unwrap_or_default().to_owned(),
            None => words.join(" "),
        };
        Self::play(&script).unwrap_or_default()
    }

    /// Follows a script; none if there is a command in it that it does not know.
    fn play(script: &str) -> Option<Self> {
        let (mut deed, mut strict) = (Self::default(), false);
        for (link, words) in commands(script)? {
            let skipped = match link {
                Link::Then => strict && deed.exit != 0,
                Link::And => deed.exit != 0,
                Link::Or => deed.exit == 0,
            };
            if skipped && link == Link::Then {
                return Some(deed);
            }
            let (name, rest) = words.split_first()?;
            let known = matches!(base(name), "sleep" | "echo" | "true" | ":" | "false" | "set" | "exit");
            if !known {
                return None;
            }
            if skipped {
                continue;
            }
            let before = std::mem::take(&mut deed.exit);
            match base(name) {
                "sleep" => {
                    for text in rest {
                        deed.sleep += seconds(text)?;
                    }
                }
                "echo" => deed.echo(rest),
                "false" => deed.exit = 1,
                "set" => strict |= rest.iter().any(|flags| flags.starts_with('-') && flags.contains('e')),
                "exit" => {
                    let code = rest.first().map_or(Some(before), |code| code.parse::<i32>().ok())?;
                    deed.exit = code & 0xff;
                    return Some(deed);
                }
                _ => {}
            }
        }
        Some(deed)
    }

    fn echo(&mut self, words: &[String]) {
        let redirect = words.iter().position(|word| word.starts_with('>'));
        let (text, rest) = words.split_at(redirect.unwrap_or(words.len()));
        let line = format!("{}\n", text.join(" "));
        match rest.concat().trim_start_matches('>') {
            "" | "&2" | "&1" => self.output += &line,
            TERMINATION_LOG => self.message += &line,
            _ => {}
        }
    }

    /// The termination message of its container: what it wrote for that, else, if the container falls back to its log, the end
    /// of what it printed, but only where it failed.
    pub(crate) fn termination_message(&self, falls_back: bool) -> &str {
        match (self.message.is_empty(), self.exit) {
            (false, _) => end_of(&self.message, MOST_MESSAGE),
            (true, 0) => "",
            (true, _) if falls_back => end_of(&self.output, MOST_LOG),
            (true, _) => "",
        }
    }
}

/// How a command follows the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Then,
    And,
    Or,
}

/// The commands of a script, each as its words without their quotes; none if it has quotes that stay open.
fn commands(script: &str) -> Option<Vec<(Link, Vec<String>)>> {
    let mut found: Vec<(Link, Vec<String>)> = vec![(Link::Then, Vec::new())];
    let (mut word, mut quote): (Option<String>, Option<char>) = (None, None);
    let mut letters = script.chars().peekable();
    while let Some(letter) = letters.next() {
        if let Some(open) = quote {
            if letter == open {
                quote = None;
            } else {
                word.get_or_insert_default().push(letter);
            }
            continue;
        }
        let doubled = matches!(letter, '&' | '|') && letters.next_if_eq(&letter).is_some();
        if letter == '#' && word.is_none() {
            while letters.next_if(|letter| *letter != '\n').is_some() {}
            continue;
        }
        let link = match letter {
            ';' | '\n' => Some(Link::Then),
            '&' if doubled => Some(Link::And),
            '|' if doubled => Some(Link::Or),
            _ => None,
        };
        if (link.is_some() || letter.is_whitespace())
            && let (Some(word), Some((_, words))) = (word.take(), found.last_mut())
        {
            words.push(word);
        }
        match (link, letter) {
            (Some(link), _) => found.push((link, Vec::new())),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, letter) if letter.is_whitespace() => {}
            (None, letter) => word.get_or_insert_default().push(letter),
        }
    }
    if let (Some(word), Some((_, words))) = (word, found.last_mut()) {
        words.push(word);
    }
    found.retain(|(_, words)| !words.is_empty());
    quote.is_none().then_some(found)
}

/// True for the flag of a shell after which its script stands, such as `-c` or `-ec`.
fn is_script_flag(word: &str) -> bool {
    word.strip_prefix('-')
        .is_some_and(|flags| flags.ends_with('c') && flags.chars().all(|flag| flag.is_ascii_lowercase()))
}

/// The name of a program without its folders.
fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// A span such as `2`, `0.5s` or `1m`.
fn seconds(text: &str) -> Option<Duration> {
    let (number, unit) = match text.chars().last()? {
        's' => (text.trim_end_matches('s'), 1.0),
        'm' => (text.trim_end_matches('m'), 60.0),
        'h' => (text.trim_end_matches('h'), 3_600.0),
        _ if text == "infinity" => ("1", LONGEST),
        _ => (text, 1.0),
    };
    let span = number.parse::<f64>().ok()? * unit;
    Duration::try_from_secs_f64(span.min(LONGEST)).ok()
}

/// The end of a text, at most so many bytes.
pub(crate) fn end_of(text: &str, most: usize) -> &str {
    let mut from = text.len().saturating_sub(most);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.get(from..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_says_what_it_would_do() {
        let deed =
            Deed::read("#!/bin/sh\n# sim: sleep 1.5\n  # sim: output a b\n# sim: exit 3\n# sim: sleep 1\necho x\n");
        let output = "a b\n".to_owned();
        assert_eq!(deed, Deed { sleep: Duration::from_millis(2_500), output, exit: 3, ..Deed::default() });
        assert_eq!(Deed::read("echo x"), Deed::default());
        assert_eq!(Deed::read("# sim: output ab\n# sim: repeat 1000").output.len(), 3_000);
    }

    #[test]
    fn a_check_says_what_it_wrote_for_that_and_only_where_it_failed_what_it_printed() {
        let said = |script: &str| Deed::read(script).termination_message(true).to_owned();
        assert_eq!(said("# sim: output no fan"), "");
        assert_eq!(said("# sim: output no fan\n# sim: exit 1"), "no fan\n");
        assert_eq!(said("# sim: output no fan\n# sim: repeat 1000\n# sim: exit 1").len(), 2_048);
        assert_eq!(said("# sim: output no fan\n# sim: message hot\n# sim: exit 1"), "hot\n");
        assert_eq!(said("# sim: message hot"), "hot\n");
        assert_eq!(Deed::read("# sim: output no fan\n# sim: exit 1").termination_message(false), "");
    }

    fn ran(command: &[&str], args: &[&str]) -> (u128, i32) {
        let words = |list: &[&str]| Some(list.iter().map(|&word| word.to_owned()).collect());
        let container = Container { command: words(command), args: words(args), ..Container::default() };
        let deed = Deed::of(&container);
        (deed.sleep.as_millis(), deed.exit)
    }

    #[test]
    fn a_command_sleeps_and_exits_as_a_shell_would() {
        assert_eq!(ran(&["sh", "-c", "sleep 2; exit 3"], &[]), (2_000, 3));
        assert_eq!(ran(&["/bin/sh", "-ec"], &["sleep 0.5s && sleep 1m\nexit 0"]), (60_500, 0));
        assert_eq!(ran(&["sleep", "5"], &[]), (5_000, 0));
        assert_eq!(ran(&["/bin/false"], &[]), (0, 1));
        assert_eq!(ran(&["sh", "-c", "false; sleep 1"], &[]), (1_000, 0));
        assert_eq!(ran(&["sh", "-c", "false && sleep 1 || sleep 2"], &[]), (2_000, 0));
        assert_eq!(ran(&["sh", "-c", "set -e; false; sleep 1"], &[]), (0, 1));
        assert_eq!(ran(&["sh", "-c", "false; exit"], &[]), (0, 1));
        assert_eq!(ran(&["sh", "-c", "exit 300 # more than a byte"], &[]), (0, 44));
    }

    #[test]
    fn a_command_that_is_not_understood_ends_well_at_once() {
        assert_eq!(ran(&["python3", "-c", "exit(1)"], &[]), (0, 0));
        assert_eq!(ran(&["sh", "-c", "sleep 5; make all; exit 1"], &[]), (0, 0));
        assert_eq!(ran(&["sh", "-c", "echo 'open; exit 1"], &[]), (0, 0));
        assert_eq!(ran(&["sleep", "long"], &[]), (0, 0));
        assert_eq!(ran(&[], &[]), (0, 0));
    }

    #[test]
    fn an_echo_prints_or_leaves_a_termination_message() {
        let deed = Deed::play("echo 'a; b' c; echo hot >/dev/termination-log; echo x > /tmp/y; exit 1").unwrap();
        assert_eq!((deed.output.as_str(), deed.termination_message(true)), ("a; b c\n", "hot\n"));
    }
}
