//! `oarlock plugin record`: prints the recorded visits of a job, for replays.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use flate2::read::MultiGzDecoder;
use oarlock_artefacts::VisitsOf;
use oarlock_core::plugin::names::{is_dns_label, is_subdomain};

use crate::commands::artefacts::ArtefactArgs;

/// The most bytes of one uncompressed file of records.
const MOST_BYTES: u64 = 256 << 20;

pub(super) const EXAMPLES: &str = "\
Examples:
  kubectl annotate opj web oarlock.dev/record=true                 records the visits of one job from now on
  oarlock host --record-visits 200 --data /var/lib/oarlock ...     records the last visits of each plugin
  oarlock plugin record web -n shop --data /var/lib/oarlock > web.jsonl
  oarlock plugin record web --artefacts s3://oarlock/files | oarlock plugin replay replace.wasm -

The host writes the records every 5 s into the folder or the bucket, and keeps them for 30 days. `oarlock dev` prints its folder.
A record has the fields that the plugin declares of the objects that it read. It never has the contents of Secrets.";

/// Arguments of `oarlock plugin record`.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// Name of the OperationJob
    job: String,
    /// Namespace of the job
    #[arg(short, long, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    store: ArtefactArgs,
}

/// Prints the records of the job, one JSON document a line.
pub(super) async fn run(args: RecordArgs) -> anyhow::Result<ExitCode> {
    let RecordArgs { job, namespace, store } = args;
    if !is_subdomain(&job) || !is_dns_label(&namespace) {
        bail!(
            "{namespace:?}/{job:?} is no name of a job: use the name and the namespace that `kubectl get opj -A` shows"
        );
    }
    let Some(artefacts) = store.open_to_read().await? else {
        bail!("name the store of the host by --data DIR or --artefacts URL, as the host's own flags do");
    };
    let files = artefacts.visits(VisitsOf { namespace: &namespace, job: &job }).await?;
    if files.is_empty() {
        bail!(
            "{} has no records of {namespace}/{job}; turn recording on with `kubectl annotate opj {job} -n {namespace} oarlock.dev/record=true`, \
             or with --record-visits of the host",
            artefacts.place()
        );
    }
    let mut out = std::io::stdout().lock();
    for file in files {
        let mut text = Vec::new();
        MultiGzDecoder::new(&file[..])
            .take(MOST_BYTES)
            .read_to_end(&mut text)
            .context("a file of records is damaged")?;
        match out.write_all(&text) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => break,
            written => written.context("cannot write to standard output")?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
