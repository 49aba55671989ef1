//! Reads the effect of a container's command from its text. No command runs.
//!
//! A task's script contains notes for the simulation: `# sim: sleep SECONDS`, `# sim: output TEXT`, `# sim: repeat COUNT` and
//! `# sim: exit CODE`. A check's script can also contain `# sim: message TEXT` for `/dev/termination-log`. The command of any other
//! container is read as a small shell: `sleep`, `exit`, `true`, `false`, `echo`, `seq` and `set -e`. The shell joins them by `;`,
//! `&&`, `||` or newlines, and supports `while true` around the last of them. A command with anything else succeeds at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::Container;

/// The kubelet's size limit for a termination message in bytes.
const MOST_MESSAGE: usize = 4096;
/// The kubelet's size limit for a log that replaces the termination message, in bytes.
const MOST_LOG: usize = 2048;
/// The default path of a container's termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// The longest sleep in seconds. It is longer than any simulation runs.
const LONGEST: f64 = 1e9;

/// The least duration of a loop's iteration, for a loop that does not sleep.
const LEAST_TURN: Duration = Duration::from_millis(1);

/// The effect of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deed {
    pub(crate) sleep: Duration,
    /// The output, each part with the time at which it is printed.
    said: Vec<(Duration, Said)>,
    /// The body of an endless loop. `turns_from` is the time at which the loop begins.
    turns: Option<Box<Deed>>,
    turns_from: Duration,
    /// The termination message that the script writes.
    pub(crate) message: String,
    pub(crate) exit: i32,
}

impl Deed {
    /// Reads the notes for the simulation in a script.
    pub(crate) fn read(script: &str) -> Self {
        let mut deed = Self::default();
        for line in script.lines().filter_map(|line| line.trim().strip_prefix("# sim: ")) {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("sleep", text) => deed.sleep += seconds(text.trim()).unwrap_or_default(),
                ("output", text) => deed.say(Said::Line(text.to_owned())),
                ("message", text) => deed.message += &format!("{text}\n"),
                ("repeat", count) => {
                    let times = count.trim().parse().unwrap_or(1);
                    deed.said = std::iter::repeat_n(deed.said, times).flatten().collect();
                }
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

    fn say(&mut self, said: Said) {
        self.said.push((self.sleep, said));
    }

    /// Returns the whole output before an endless loop.
    pub(crate) fn output(&self) -> String {
        let lines = self.said.iter().flat_map(|(_, said)| (0..).map_while(|number| said.line(number)));
        lines.map(|line| line + "\n").collect()
    }

    /// Evaluates a script. Returns none if it contains an unknown command.
    fn play(script: &str) -> Option<Self> {
        Self::follow(&commands(script)?)
    }

    fn follow(commands: &[(Link, Vec<String>)]) -> Option<Self> {
        let (mut deed, mut strict) = (Self::default(), false);
        for (at, (link, words)) in commands.iter().enumerate() {
            let link = *link;
            let skipped = match link {
                Link::Then => strict && deed.exit != 0,
                Link::And => deed.exit != 0,
                Link::Or => deed.exit == 0,
            };
            if skipped && link == Link::Then {
                return Some(deed);
            }
            let (name, rest) = words.split_first()?;
            if name == "while" && !skipped {
                let turn = Self::turn(rest, commands.get(at + 1..)?)?;
                (deed.turns, deed.turns_from) = (Some(Box::new(turn)), deed.sleep);
                deed.sleep = Duration::from_secs_f64(LONGEST);
                return Some(deed);
            }
            let known = matches!(base(name), "sleep" | "echo" | "seq" | "true" | ":" | "false" | "set" | "exit");
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
                "seq" => deed.say(Said::numbers(rest)?),
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

    /// Evaluates one iteration of an endless loop, whose body ends at `done`.
    fn turn(condition: &[String], rest: &[(Link, Vec<String>)]) -> Option<Self> {
        let is_endless = matches!(condition, [word] if matches!(word.as_str(), "true" | ":"));
        let end = rest.iter().position(|(_, words)| words.first().is_some_and(|word| word == "done"))?;
        let mut body = rest.get(..end).filter(|_| is_endless)?.to_vec();
        let (_, first) = body.first_mut().filter(|(_, words)| words.first().is_some_and(|word| word == "do"))?;
        first.remove(0);
        body.retain(|(_, words)| !words.is_empty());
        let leaves =
            body.iter().any(|(_, words)| words.first().is_some_and(|word| matches!(word.as_str(), "exit" | "while")));
        if leaves { None } else { Self::follow(&body) }
    }

    fn echo(&mut self, words: &[String]) {
        let redirect = words.iter().position(|word| word.starts_with('>'));
        let (text, rest) = words.split_at(redirect.unwrap_or(words.len()));
        let line = text.join(" ");
        match rest.concat().trim_start_matches('>') {
            "" | "&2" | "&1" => self.say(Said::Line(line)),
            TERMINATION_LOG => self.message += &format!("{line}\n"),
            _ => {}
        }
    }

    /// Returns the container's termination message: the message that it wrote. If there is none, the container failed and falls
    /// back to its log, it is the end of the output.
    pub(crate) fn termination_message(&self, falls_back: bool) -> String {
        match (self.message.is_empty(), self.exit) {
            (false, _) => end_of(&self.message, MOST_MESSAGE).to_owned(),
            (true, 0) => String::new(),
            (true, _) if falls_back => end_of(&self.output(), MOST_LOG).to_owned(),
            (true, _) => String::new(),
        }
    }
}

/// One part of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Line(String),
    /// The numbers from the first to the last, each between these texts.
    Numbers(u64, u64, String, String),
}

impl Said {
    /// Evaluates the arguments of `seq`: `[-f FORMAT] [FIRST] LAST`.
    fn numbers(words: &[String]) -> Option<Self> {
        let (format, words) = match words {
            [flag, format, rest @ ..] if flag == "-f" => (format.as_str(), rest),
            rest => ("%g", rest),
        };
        let (before, after) = format.split_once("%.0f").or_else(|| format.split_once("%g"))?;
        let (first, last) = match words {
            [last] => (1, last.parse().ok()?),
            [first, last] => (first.parse().ok()?, last.parse().ok()?),
            _ => return None,
        };
        Some(Self::Numbers(first, last, before.to_owned(), after.to_owned()))
    }

    /// Returns a line of this part, counted from 0.
    fn line(&self, number: u64) -> Option<String> {
        match self {
            Self::Line(line) => (number == 0).then(|| line.clone()),
            Self::Numbers(first, last, before, after) => {
                let number = first.checked_add(number).filter(|number| number <= last)?;
                Some(format!("{before}{number}{after}"))
            }
        }
    }
}

/// The lines of a command's output with their times. They do not end if the command has an endless loop.
pub(crate) struct Lines {
    deed: Deed,
    /// The iteration of the endless loop, none before the loop.
    turn: Option<u32>,
    at: usize,
    within: u64,
}

impl Lines {
    pub(crate) fn of(deed: Deed) -> Self {
        Self { deed, turn: None, at: 0, within: 0 }
    }
}

impl Iterator for Lines {
    type Item = (Duration, String);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (said, begin) = match (self.turn, &self.deed.turns) {
                (Some(number), Some(turn)) => {
                    let takes = turn.sleep.max(LEAST_TURN).saturating_mul(number);
                    (&turn.said, self.deed.turns_from.saturating_add(takes))
                }
                _ => (&self.deed.said, Duration::ZERO),
            };
            if let Some((after, said)) = said.get(self.at) {
                if let Some(line) = said.line(self.within) {
                    self.within += 1;
                    return Some((begin.saturating_add(*after), line));
                }
                (self.at, self.within) = (self.at + 1, 0);
                continue;
            }
            self.deed.turns.as_ref().filter(|turn| !turn.said.is_empty())?;
            self.turn = Some(self.turn.map_or(Some(0), |number| number.checked_add(1))?);
            (self.at, self.within) = (0, 0);
        }
    }
}

/// The link between a command and the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Then,
    And,
    Or,
}

/// Splits a script into commands, each as words without quotes. Returns none if a quote stays open.
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

/// Returns true if the word is a shell's flag before its script, such as `-c` or `-ec`.
fn is_script_flag(word: &str) -> bool {
    word.strip_prefix('-')
        .is_some_and(|flags| flags.ends_with('c') && flags.chars().all(|flag| flag.is_ascii_lowercase()))
}

/// Returns the name of a program without its folders.
fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Parses a duration such as `2`, `0.5s` or `1m`.
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

/// Returns the end of a text, with at most this many bytes.
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
        let said = vec![(Duration::from_millis(1_500), Said::Line("a b".to_owned()))];
        assert_eq!(deed, Deed { sleep: Duration::from_millis(2_500), said, exit: 3, ..Deed::default() });
        assert_eq!(Deed::read("echo x"), Deed::default());
        assert_eq!(Deed::read("# sim: output ab\n# sim: repeat 1000").output().len(), 3_000);
    }

    #[test]
    fn a_check_says_what_it_wrote_for_that_and_only_where_it_failed_what_it_printed() {
        let said = |script: &str| Deed::read(script).termination_message(true);
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
        assert_eq!((deed.output().as_str(), deed.termination_message(true).as_str()), ("a; b c\n", "hot\n"));
    }

    #[test]
    fn what_a_command_prints_comes_in_its_time_and_from_a_loop_without_end() {
        let printed = |script: &str, most: usize| {
            let deed = Deed::play(script).unwrap();
            let lines = Lines::of(deed).take(most).map(|(after, line)| (after.as_millis(), line));
            lines.collect::<Vec<_>>()
        };
        let line = |after: u128, line: &str| (after, line.to_owned());
        assert_eq!(printed("echo a; sleep 2; seq 2; sleep 1", 9), [line(0, "a"), line(2_000, "1"), line(2_000, "2")]);
        assert_eq!(printed("seq -f 'n %g.' 7 8", 9), [line(0, "n 7."), line(0, "n 8.")]);
        let ticks = "echo begin; while true; do echo tick; sleep 0.5; done";
        assert_eq!(printed(ticks, 4), [line(0, "begin"), line(0, "tick"), line(500, "tick"), line(1_000, "tick")]);
        assert_eq!(printed("while :; do echo x; done", 3), [line(0, "x"), line(1, "x"), line(2, "x")]);
        assert_eq!(printed("while true; do sleep 1; done", 3), []);
        assert!(Deed::play(ticks).unwrap().sleep > Duration::from_hours(1_000));
        for script in ["while read l; do echo l; done", "while true; do exit 1; done", "while true; do echo x", "seq a"]
        {
            assert_eq!(Deed::play(script), None, "{script}");
        }
    }
}
