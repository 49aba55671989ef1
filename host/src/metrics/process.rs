//! The figures of the process itself, under the usual Prometheus names. The figures are read from `/proc`, and absent
//! without it.

use std::fmt;
use std::fs::read_to_string;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The ticks of a second in `/proc`, the same on every Linux.
const TICKS: f64 = 100.0;

/// The collector of this process's figures.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stat = Stat::read();
        if let Some(seconds) = stat.cpu_seconds() {
            let help = "CPU time of the process, in seconds";
            let family = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(family)?;
        }
        let gauges = [
            ("process_start_time_seconds", "Start time of the process, in seconds since 1970", stat.started()),
            ("process_resident_memory_bytes", "Resident memory of the process", resident_bytes()),
            ("process_open_fds", "Number of open file descriptors", open_files()),
            ("process_threads", "Number of threads", stat.field(20)),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(family)?;
            }
        }
        Ok(())
    }
}

/// The fields of `/proc/self/stat`, without the program's name, which may contain blanks.
struct Stat(Vec<String>);

impl Stat {
    fn read() -> Self {
        let text = read_to_string("/proc/self/stat").unwrap_or_default();
        let (_, fields) = text.rsplit_once(") ").unwrap_or_default();
        Self(fields.split_whitespace().map(str::to_owned).collect())
    }

    /// Returns a field by its number in proc(5). The third field is the first here.
    fn field(&self, number: usize) -> Option<f64> {
        self.0.get(number.checked_sub(3)?)?.parse().ok()
    }

    fn cpu_seconds(&self) -> Option<f64> {
        Some((self.field(14)? + self.field(15)?) / TICKS)
    }

    fn started(&self) -> Option<f64> {
        let boot = read_to_string("/proc/stat").ok()?;
        let boot: f64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        Some(boot + self.field(22)? / TICKS)
    }
}

fn resident_bytes() -> Option<f64> {
    let status = read_to_string("/proc/self/status").ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

#[allow(clippy::cast_precision_loss, reason = "a process has far less than 2^52 files open")]
fn open_files() -> Option<f64> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count() as f64)
}
