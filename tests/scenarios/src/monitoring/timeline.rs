//! Series that were scraped from hosts, stretched in time.
//!
//! Takes the texts of `/metrics` at chosen minutes; yields the values of each series at every minute, as promtool reads
//! them. Between two scrapes a counter grows evenly, and a gauge keeps its value. A series exists from its first scrape
//! until its process is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Context as _;

/// The values of one scrape, by series.
type Values = BTreeMap<String, f64>;

/// The scrapes of one process, by minute.
#[derive(Debug, Default)]
struct Instance {
    scrapes: Vec<(usize, Values)>,
    /// The minute at which the process was gone.
    gone: Option<usize>,
}

/// The scrapes of some processes, and the present minute.
#[derive(Debug, Default)]
pub struct Timeline {
    minute: usize,
    instances: BTreeMap<String, Instance>,
    /// The series that are counters. The lines `# TYPE` name them.
    counters: BTreeSet<String>,
}

/// Series without scrapes after the end keep their values for this time, in minutes.
const AFTER_THE_END: usize = 5;

impl Timeline {
    /// Notes the values of a process at the present minute.
    ///
    /// # Errors
    /// If the text is not in the format of `/metrics`.
    pub fn scrape(&mut self, instance: &str, text: &str) -> anyhow::Result<()> {
        let mut values = Values::new();
        for line in text.lines() {
            if let Some(metric) = line.strip_prefix("# TYPE ") {
                let (name, kind) = metric.split_once(' ').context("a type has a name")?;
                if kind == "counter" || kind == "histogram" {
                    self.counters.insert(name.to_owned());
                }
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').with_context(|| format!("no sample: {line}"))?;
                values.insert(series.to_owned(), value.parse().with_context(|| format!("no value: {line}"))?);
            }
        }
        self.instances.entry(instance.to_owned()).or_default().scrapes.push((self.minute, values));
        Ok(())
    }

    /// Notes that a process is gone.
    pub fn gone(&mut self, instance: &str) {
        self.instances.entry(instance.to_owned()).or_default().gone = Some(self.minute);
    }

    /// Lets time pass between two scrapes.
    pub fn pass(&mut self, minutes: usize) {
        self.minute += minutes;
    }

    /// Returns the last minute of the series.
    pub fn end(&self) -> usize {
        self.minute + AFTER_THE_END
    }

    /// Returns the names of all series that were scraped, without labels.
    pub fn names(&self) -> BTreeSet<String> {
        let values = self.instances.values().flat_map(|instance| &instance.scrapes).flat_map(|(_, values)| values);
        values.map(|(series, _)| series.split('{').next().unwrap_or(series).to_owned()).collect()
    }

    /// Returns the part `input_series` of a test file for promtool.
    pub fn input_series(&self) -> String {
        let mut text = String::new();
        for (name, instance) in &self.instances {
            let all: BTreeSet<&String> = instance.scrapes.iter().flat_map(|(_, values)| values.keys()).collect();
            for series in all {
                let _ = writeln!(text, "  - series: '{}'", with_instance(series, name).replace('\'', "''"));
                let values = self.values(instance, series).join(" ");
                let _ = writeln!(text, "    values: '{values}'");
            }
        }
        text
    }

    /// Returns the values of a series at each minute.
    fn values(&self, instance: &Instance, series: &str) -> Vec<String> {
        let is_counter = self.is_counter(series);
        let mut values: Vec<Option<f64>> = Vec::new();
        for minute in 0..=self.end() {
            let (before, after) = instance.scrapes.split_at(instance.scrapes.partition_point(|(at, _)| *at <= minute));
            let value = before.last().and_then(|(began, last)| {
                let now = *last.get(series)?;
                // A smaller value is another process, whose counters began anew.
                let next = after.first().filter(|_| is_counter).map(|(at, next)| (at, next.get(series)));
                let Some((at, Some(then))) = next.filter(|(_, then)| then.is_some_and(|then| *then >= now)) else {
                    return Some(now);
                };
                Some(now + (then - now) * (minute - began) as f64 / (at - began) as f64)
            });
            values.push(value.filter(|_| instance.gone.is_none_or(|gone| minute < gone)));
        }
        let before = std::iter::once(&None).chain(&values);
        let written = values.iter().zip(before).map(|(value, before)| match (value, before) {
            (Some(value), _) => value.to_string(),
            (None, Some(_)) => "stale".to_owned(),
            (None, None) => "_".to_owned(),
        });
        written.collect()
    }

    fn is_counter(&self, series: &str) -> bool {
        let name = series.split('{').next().unwrap_or(series);
        let suffixes = ["_total", "_count", "_sum", "_bucket"];
        suffixes.iter().any(|suffix| name.strip_suffix(suffix).is_some_and(|metric| self.counters.contains(metric)))
    }
}

/// Returns a series with the labels that Prometheus adds to each series of a process.
fn with_instance(series: &str, instance: &str) -> String {
    let target = format!(r#"job="oarlock",instance="{instance}""#);
    match series.split_once('{') {
        Some((name, labels)) => format!("{name}{{{target},{labels}"),
        None => format!("{series}{{{target}}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: &str = "# TYPE oarlock_a counter\n# TYPE oarlock_b gauge\n";

    #[test]
    fn a_counter_grows_evenly_and_a_gauge_keeps_its_value() -> anyhow::Result<()> {
        let mut timeline = Timeline::default();
        timeline.scrape("host", &format!("{TYPES}oarlock_a_total 0\noarlock_b 1\n"))?;
        timeline.pass(4);
        timeline.scrape("host", &format!("{TYPES}oarlock_a_total 2\noarlock_b 9\n# EOF\n"))?;
        let text = timeline.input_series();
        assert!(text.contains("'oarlock_a_total{job=\"oarlock\",instance=\"host\"}'"), "{text}");
        assert!(text.contains("'0 0.5 1 1.5 2 2 2 2 2 2'") && text.contains("'1 1 1 1 9 9 9 9 9 9'"), "{text}");
        Ok(())
    }

    #[test]
    fn a_series_begins_with_its_first_scrape_and_ends_with_its_process() -> anyhow::Result<()> {
        let mut timeline = Timeline::default();
        timeline.scrape("host", TYPES)?;
        timeline.pass(1);
        timeline.scrape("host", &format!("{TYPES}oarlock_a_total{{x=\"y\"}} 5\n"))?;
        timeline.pass(2);
        timeline.gone("host");
        let text = timeline.input_series();
        assert!(text.contains("'_ 5 5 stale _ _ _ _ _'"), "{text}");
        assert!(text.contains("instance=\"host\",x=\"y\"}"), "{text}");
        Ok(())
    }
}
