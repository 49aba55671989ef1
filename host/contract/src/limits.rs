//! The limits of a call, and the messages for calls that exceed them.

use serde::{Deserialize, Serialize};

use crate::grant::Limits;

/// The limits of the calls of one plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginLimits {
    /// The most run time of a call, in milliseconds.
    pub call_ms: u32,
    /// The memory of an instance.
    pub memory_mib: u32,
    /// The size of an answer.
    pub output_bytes: u32,
    /// The size of the log lines of a call.
    pub log_bytes: u32,
    /// The number of calls of host functions and of passed objects during a call.
    pub host_calls: u32,
}

/// The limits of a plugin that requests none. They are also the highest limits without a grant. A plugin in Rust needs a tenth of them.
pub const DEFAULTS: PluginLimits =
    PluginLimits { call_ms: 100, memory_mib: 32, output_bytes: 256 * 1024, log_bytes: 16 * 1024, host_calls: 10_000 };

/// The highest limits that a grant can give. Memory is limited by the memories of the instance pool, and times are limited so that a round
/// stays short.
pub const CAPS: PluginLimits = PluginLimits {
    call_ms: 5_000,
    memory_mib: 64,
    output_bytes: 1024 * 1024,
    log_bytes: 256 * 1024,
    host_calls: 1_000_000,
};

impl PluginLimits {
    /// Returns the lowest of the request, the grant or its default, and the cap.
    pub fn of(asked: &Limits, granted: &Limits, caps: &PluginLimits) -> Self {
        let least = |asked: Option<u32>, granted: Option<u32>, default: u32, cap: u32| {
            let class = granted.unwrap_or(default);
            asked.unwrap_or(class).min(class).min(cap).max(1)
        };
        Self {
            call_ms: least(asked.call_milliseconds, granted.call_milliseconds, DEFAULTS.call_ms, caps.call_ms),
            memory_mib: least(asked.memory_mib, granted.memory_mib, DEFAULTS.memory_mib, caps.memory_mib),
            output_bytes: least(asked.output_bytes, granted.output_bytes, DEFAULTS.output_bytes, caps.output_bytes),
            log_bytes: least(asked.log_bytes, granted.log_bytes, DEFAULTS.log_bytes, caps.log_bytes),
            host_calls: least(asked.host_calls, granted.host_calls, DEFAULTS.host_calls, caps.host_calls),
        }
    }

    /// Returns the message for a call that made too many calls of host functions.
    pub fn too_many_host_calls(&self) -> String {
        format!("it called the host more than {} times", self.host_calls)
    }

    /// Returns the message for a call whose answer is too large.
    pub fn too_large_an_answer(&self) -> String {
        format!("its answer has more than {} bytes", self.output_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a number in the form of the page, such as `10,000`.
    fn grouped(number: u32) -> String {
        let digits = number.to_string();
        let (head, tail) = digits.split_at(digits.len() % 3);
        let groups = tail.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
        let head = (!head.is_empty()).then(|| head.to_owned());
        head.into_iter().chain(groups).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn the_page_for_authors_has_the_numbers_of_the_host() {
        let page = include_str!("../../../docs/plugins.md");
        let schema = crate::manifest::JSON_SCHEMA;
        let kib =
            |bytes: u32| if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) };
        for (own, most, name, bytes) in [
            (DEFAULTS.output_bytes, CAPS.output_bytes, "outputBytes", true),
            (DEFAULTS.log_bytes, CAPS.log_bytes, "logBytes", true),
            (DEFAULTS.host_calls, CAPS.host_calls, "hostCalls", false),
        ] {
            let shown = |number| if bytes { kib(number) } else { grouped(number) };
            let row = format!("| {} | {} | `{name}` |", shown(own), shown(most));
            assert!(page.contains(&row), "{row}");
            assert!(schema.contains(&format!("{own} without a grant, at most {most}.")), "{name}");
        }
        let time = format!("| {} ms | {} s | `callMilliseconds` |", DEFAULTS.call_ms, CAPS.call_ms / 1000);
        let memory = format!("| {} MiB | {} MiB | `memoryMiB` |", DEFAULTS.memory_mib, CAPS.memory_mib);
        let extras = format!("together | {} bytes |", grouped(crate::authorize::MAX_EXTRA_BYTES as u32));
        let mutations = format!("| mutations of a proposal | {} |", crate::authorize::MAX_MUTATIONS);
        let events = format!("| events of a proposal | {} |", crate::authorize::MAX_EVENTS);
        for row in [time, memory, extras, mutations, events] {
            assert!(page.contains(&row), "{row}");
        }
        assert!(crate::extras::HOST.iter().all(|key| page.contains(&format!("| `{key}` |"))));
    }

    #[test]
    fn the_least_of_ask_grant_and_cap_holds() {
        let of = |asked, granted| {
            let asked = Limits { call_milliseconds: asked, ..Limits::default() };
            let granted = Limits { call_milliseconds: granted, ..Limits::default() };
            PluginLimits::of(&asked, &granted, &CAPS).call_ms
        };
        assert_eq!(of(None, None), DEFAULTS.call_ms);
        assert_eq!(of(Some(50), None), 50);
        assert_eq!(of(Some(900), None), DEFAULTS.call_ms);
        assert_eq!(of(Some(900), Some(500)), 500);
        assert_eq!(of(Some(u32::MAX), Some(u32::MAX)), CAPS.call_ms);
    }
}
