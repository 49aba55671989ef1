//! The command lines of etcd, the API server and the controller manager. This module builds commands and starts none.

use std::path::Path;
use std::process::Command;

use controlplane::Binaries;

use crate::accounts::ServiceAccountKeys;
use crate::control_plane::Options;

/// The ports of the servers, all on the loopback interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) store: u16,
    pub(crate) store_peers: u16,
    pub(crate) api: u16,
}

/// The files that the servers read and write.
pub(crate) struct Files<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) tokens: &'a Path,
    pub(crate) keys: &'a ServiceAccountKeys,
    pub(crate) audit_policy: Option<&'a Path>,
}

fn local(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

pub(crate) fn store(binaries: &Binaries, folder: &Path, ports: Ports, options: &Options) -> Command {
    let (clients, peers) = (local(ports.store), local(ports.store_peers));
    let mut command = Command::new(&binaries.etcd);
    command
        .arg(format!("--data-dir={}", folder.join("etcd").display()))
        .arg(format!("--listen-client-urls={clients}"))
        .arg(format!("--advertise-client-urls={clients}"))
        .arg(format!("--listen-peer-urls={peers}"))
        .arg(format!("--initial-advertise-peer-urls={peers}"))
        .arg(format!("--initial-cluster=default={peers}"))
        .arg("--log-level=warn");
    if !options.durable_store {
        command.arg("--unsafe-no-fsync");
    }
    command
}

pub(crate) fn api_server(binaries: &Binaries, files: &Files<'_>, ports: Ports, options: &Options) -> Command {
    let mut command = Command::new(&binaries.kube_apiserver);
    command
        .arg(format!("--etcd-servers={}", local(ports.store)))
        .arg(format!("--secure-port={}", ports.api))
        .arg(format!("--cert-dir={}", files.folder.join("certificates").display()))
        .arg(format!("--token-auth-file={}", files.tokens.display()))
        .arg(format!("--service-account-signing-key-file={}", files.keys.private.display()))
        .arg(format!("--service-account-key-file={}", files.keys.public.display()))
        .args([
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            // As in every cluster: the pods of tasks that run commands on nodes are privileged.
            "--allow-privileged=true",
            // The pods here have no service accounts, because no container runs.
            "--disable-admission-plugins=ServiceAccount",
        ]);
    if let Some(policy) = files.audit_policy {
        command
            .arg(format!("--audit-policy-file={}", policy.display()))
            .arg(format!("--audit-log-path={}", files.folder.join("audit.log").display()))
            // In MB. If the API server rotated the log, entries that no test has read yet would be lost.
            .arg("--audit-log-maxsize=100000")
            .arg("--audit-log-mode=blocking");
    }
    command.args(&options.api_server_flags);
    command
}

pub(crate) fn controller_manager(binaries: &Binaries, kubeconfig: &Path, options: &Options) -> Command {
    let mut command = Command::new(&binaries.kube_controller_manager);
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--controllers={}", options.controllers.join(",")))
        // Port 0 serves nothing. There is only one controller manager, so it needs no leader election.
        .args(["--secure-port=0", "--leader-elect=false", "--use-service-account-credentials=false"])
        .args(&options.controller_manager_flags);
    command
}
