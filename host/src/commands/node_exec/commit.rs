//! The built-in command `commit`: makes an image of a container of this node and pushes it to a registry. Source:
//! docs/opsjob.md 12.
//!
//! The command finds the container by the labels in the container runtime. It returns the reference and the digest of
//! the image. The runtime commits and pushes with nerdctl, which the node must have.
//!
//! The command never puts a credential into an argument, a variable or a file. nerdctl reads the credentials from the
//! pod's own Secret, through an inherited file descriptor.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use oarlock_core::operation_job::tasks::stored::{NodeResult, tail};
use oarlock_registry::{Destination, Registries, credentials_in};
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::time::timeout;

use crate::images::export_output;

/// The names in the Secret: the file with the credentials, and the folder with the CA certificates of each registry.
const CONFIG: &str = "config.json";
const AUTHORITIES: &str = "certs.d";
/// The words with which a failed script states its reason. Without such a word, the command of the last line failed.
const REASONS: [&str; 5] = ["ToolMissing", "ContainerGone", "CommandFailed", "PushFailed", "Unauthorized"];
/// The longest value in the script, in bytes.
const MOST: usize = 512;
/// The longest message of a tool, in bytes. The host shows 200 characters of the reason and the message.
const MOST_WORDS: usize = 150;
/// The time to read the digest of the pushed image.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// The container to commit, and the destination of its image.
#[derive(Debug, Args)]
pub(super) struct CommitArgs {
    /// UID of the pod, for the command commit
    #[arg(long)]
    pod_uid: Option<String>,
    /// Container of the pod
    #[arg(long)]
    container: Option<String>,
    /// The image to create, HOST[:PORT]/NAME:TAG
    #[arg(long)]
    image: Option<String>,
    /// Another host to which the registry may redirect
    #[arg(long = "registry-host")]
    registry_hosts: Vec<String>,
    /// Directory with the Secret of the registry
    #[arg(long)]
    registry_secret: Option<PathBuf>,
}

/// A commit with the files that it needs from its pod.
pub(super) struct Commit {
    pod_uid: String,
    container: String,
    place: Destination,
    registries: Registries,
    /// The folder of the Secret, which stays open while the script runs.
    secret: Option<File>,
}

impl CommitArgs {
    /// Reads the Secret of the pod and checks the arguments.
    pub(super) fn begin(self) -> anyhow::Result<Commit> {
        let Self { pod_uid, container, image, registry_hosts: hosts, registry_secret } = self;
        let word = |name: &str, value: Option<String>| {
            let value = value.with_context(|| format!("the command commit needs --{name}"))?;
            if is_word(&value) { Ok(value) } else { bail!("--{name} {value:?} is no plain word") }
        };
        let (pod_uid, container, image) =
            (word("pod-uid", pod_uid)?, word("container", container)?, word("image", image)?);
        let (registry, _) = image.split_once('/').context("--image has no registry")?;
        let file = |name: &str| registry_secret.as_deref().map_or(Ok(None), |folder| read(folder, name));
        let (config, ca) = (file(CONFIG)?, file(&format!("{AUTHORITIES}/{registry}/ca.crt"))?);
        let (name, _) = image.rsplit_once(':').context("--image has no tag")?;
        let credentials = config.and_then(|config| credentials_in(&config, name));
        let secret = registry_secret.as_deref().map(inherited).transpose()?;
        let registries = Registries::new().context("cannot reach registries")?;
        Ok(Commit { pod_uid, container, place: Destination { image, credentials, hosts, ca }, registries, secret })
    }
}

/// Reads a file of the Secret. A missing file is no error: the registry refuses the push if it needs the file.
fn read(folder: &Path, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
    match std::fs::read(folder.join(name)) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {name} of the Secret of the registry")),
    }
}

/// Opens a folder that child processes find as `/proc/self/fd/N`, even with another root.
fn inherited(folder: &Path) -> anyhow::Result<File> {
    let opened = File::open(folder).context("cannot open the Secret of the registry")?;
    fcntl_setfd(&opened, FdFlags::empty()).context("cannot hand the Secret of the registry on")?;
    Ok(opened)
}

/// Returns true if a value is safe in the single quotes of the script. The value may come from an untrusted user.
fn is_word(value: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
    (1..=MOST).contains(&value.len()) && !value.starts_with('-') && value.bytes().all(is_plain)
}

impl Commit {
    /// Returns the script for the node. The runtime finds the container by the labels that the kubelet set. The pod
    /// keeps running meanwhile.
    ///
    /// nerdctl locks the folder that the label `nerdctl/state-dir` names, and an image may carry that label. So the
    /// script refuses a container with this label. The script also refuses a container of a runtime other than runc,
    /// whose files may be elsewhere.
    ///
    /// A sparse file takes no space in a container, but its full size in an image. So the script ends a commit before
    /// it takes half of the free space of its node.
    pub(super) fn script(&self) -> String {
        let Self { pod_uid, container, secret, place: Destination { image, .. }, .. } = self;
        let secret = secret.as_ref().map(|folder| format!("/proc/self/fd/{}", folder.as_raw_fd()));
        let secret = secret.as_deref().unwrap_or("/nonexistent");
        format!(
            r#"set -u
failed() {{ printf '%s: %s\n' "$1" "$2"; exit 1; }}
options='--namespace k8s.io --hosts-dir {secret}/{AUTHORITIES} --hosts-dir /etc/containerd/certs.d'
runtime() {{ nerdctl $options "$@"; }}
command -v nerdctl > /dev/null || failed ToolMissing "the node has no nerdctl in $PATH: an admin installs it, or take mode copy"
export DOCKER_CONFIG='{secret}'
found=$(runtime ps --no-trunc --format '{{{{.ID}}}} {{{{.Runtime}}}} {{{{.Label "nerdctl/state-dir"}}}};' --filter 'label=io.cri-containerd.kind=container' \
    --filter 'label=io.kubernetes.pod.uid={pod_uid}' --filter 'label=io.kubernetes.container.name={container}' 2> /dev/null) ||
    failed CommandFailed "$(runtime ps 2>&1)"
[ -n "$found" ] || failed ContainerGone 'the container {container} is not running, or the runtime does not know it by its pod'
id=${{found%% *}}
[ "$found" = "$id io.containerd.runc.v2 ;" ] ||
    failed CommandFailed 'only a container of the runtime io.containerd.runc.v2 whose image has no label nerdctl/state-dir is committed'
case "$id" in *[!0-9a-f]*) failed CommandFailed 'the runtime names the container by no id' ;; esac
written=$(while read -r _ place _ words _; do case "$place:$words" in */"$id"/rootfs:*upperdir=*)
    words=${{words#*upperdir=}} && printf '%s' "${{words%%,*}}" ;; esac; done < /proc/mounts)
[ -n "$written" ] || failed CommandFailed 'the file system of the container is no overlay of its node'
disk=${{written%/*/*}}
free() {{ df -Pk "$disk" | tail -n 1 | {{ read -r _ _ _ kilobytes _ && printf '%s' "$kilobytes"; }}; }}
least=$(($(free) / 2))
too_much='what is in the container takes more room than the disk of its node has to spare'
[ -z "$(find "$written" -type f -size +"$(free)"k | head -n 1)" ] || failed CommandFailed "$too_much"
bounded() {{
    (exec nerdctl $options "$@") 2>&1 &
    work=$! full=
    while kill -0 "$work" 2> /dev/null; do
        [ "$(free)" -gt "$least" ] || {{ full=1 && kill "$work"; }}
        sleep 1
    done
    wait "$work" && [ -z "$full" ] && return
    [ -z "$full" ] || echo "$too_much"
    return 1
}}
remove() {{ runtime rmi --force '{image}' '{image}-tmp-reduced-platform' > /dev/null 2>&1; }}
trap remove EXIT
trap 'exit 1' TERM INT HUP
said=$(bounded commit --pause=false "$id" '{image}') || failed CommandFailed "$said"
said=$(runtime push --quiet '{image}' 2>&1) || case "$said" in
    *'401 Unauthorized'*|*'403 Forbidden'*|*'access denied'*|*'authorization failed'*|*'to the resource is denied'*) failed Unauthorized "$said" ;;
    *) failed PushFailed "$said" ;;
esac
"#
        )
    }

    /// Adds the reference and the digest of the image to the script's result, or the reason why there is none.
    pub(super) async fn conclude(&self, result: NodeResult) -> NodeResult {
        if result.exit_code != Some(0) {
            let message = result.message.or_else(|| Some(self.why(&result.output)));
            return NodeResult { message, ..result };
        }
        let image = &self.place.image;
        let unknown = match timeout(ANSWERS_WITHIN, self.registries.digest_at(&self.place)).await {
            Ok(Ok(Some(digest))) => {
                let output = export_output(image, &digest, &[]);
                return NodeResult { output, sha256: None, truncated: false, ..result };
            }
            Ok(Ok(None)) => "it is not there".to_owned(),
            Ok(Err(failed)) => failed.to_string(),
            Err(_) => format!("no answer within {} s", ANSWERS_WITHIN.as_secs()),
        };
        let message = format!(
            "PushFailed: it is in the registry as {image}, and its digest cannot be read: {}",
            tail(&unknown, MOST_WORDS)
        );
        NodeResult { exit_code: None, message: Some(message), ..result }
    }

    /// Returns the reason and the message of a failed script. Keeps the end of a long message, which says most.
    fn why(&self, output: &str) -> String {
        let known = REASONS.into_iter().find_map(|reason| {
            let at = output.rfind(&format!("{reason}: "))?;
            output.get(at..)?.strip_prefix(reason)?.strip_prefix(": ").map(|words| (reason, words))
        });
        let (reason, words) = known.unwrap_or(("CommandFailed", output));
        if reason == "Unauthorized" && self.place.credentials.is_none() {
            let (registry, _) = self.place.image.split_once('/').unwrap_or_default();
            return format!(
                "Unauthorized: no Secret of the name of --export-secret in oarlock-tasks has an entry for {registry}: a cluster admin makes one"
            );
        }
        format!("{reason}: {}", tail(cause(words), MOST_WORDS))
    }
}

/// Returns the cause in a tool's output: the message of the last line, without the address before it.
fn cause(words: &str) -> &str {
    let last = words.trim().lines().last().unwrap_or("it said nothing");
    let message = last.split_once("msg=\"").map_or(last, |(_, message)| message.trim_end_matches('"'));
    message.rsplit_once("\\\": ").map_or(message, |(_, cause)| cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(credentials: bool) -> Commit {
        let credentials =
            credentials.then(|| oarlock_registry::Credentials { username: "u".into(), password: "p".into() });
        let place = Destination { image: "reg:5000/custom/a:1".into(), credentials, ..Destination::default() };
        let (pod_uid, container) = ("u".to_owned(), "app".to_owned());
        Commit { pod_uid, container, place, registries: Registries::new().unwrap(), secret: None }
    }

    #[test]
    fn a_script_that_failed_says_why_by_its_last_words() {
        let (known, unknown) = (commit(true), commit(false));
        assert_eq!(known.why("noise\nToolMissing: no nerdctl\n"), "ToolMissing: no nerdctl");
        assert_eq!(known.why(""), "CommandFailed: it said nothing");
        let said = "PushFailed: time=\"2026\" level=info msg=\"pushing\"\ntime=\"2026\" level=fatal msg=\"failed to do request: Head \\\"https://reg:5000/v2/a\\\": dial tcp: connection refused\"";
        assert_eq!(known.why(said), "PushFailed: dial tcp: connection refused");
        let denied = "Unauthorized: level=fatal msg=\"unexpected status: 401 Unauthorized\"";
        assert_eq!(known.why(denied), "Unauthorized: unexpected status: 401 Unauthorized");
        assert!(unknown.why(denied).contains("oarlock-tasks has an entry for reg:5000"));
    }

    #[test]
    fn what_would_leave_its_quotes_is_no_word_of_a_script() {
        assert!(["reg:5000/custom/a.b/c-d_e:20260101", "app"].into_iter().all(is_word));
        assert!(["", "a'b", "a b", "$(a)", "-rf", "a\n"].into_iter().all(|word| !is_word(word)));
    }
}
