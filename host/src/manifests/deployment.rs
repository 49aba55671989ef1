//! The host as a Deployment, with its grants and the source of its plugins.

use std::collections::BTreeMap;
use std::str::FromStr;

use oarlock_api::HostAccount;
use serde::Serialize;
use serde_json::{Value, json};
use serde_saphyr::LitStr;

use super::{ManifestsError, join};

const DEPLOYMENT: &str = include_str!("../../manifests/deployment.yaml");
/// The texts of the server: its container, its Deployment, and its token if it runs in the host's pod.
const SERVER: &str = include_str!("../../manifests/server-container.yaml");
const SERVER_DEPLOYMENT: &str = include_str!("../../manifests/server.yaml");
const SERVER_TOKEN: &str = include_str!("../../manifests/server-token.yaml");
/// The path of the plugin directory in a pod of the host.
const PLUGINS: &str = "/plugins";
/// The number of hexadecimal digits in the name of a ConfigMap. Sixteen digits are 64 bits, which no two grants of one
/// cluster share by chance.
const DIGITS: usize = 16;
/// The lines of the text after or before which mounts, variables and volumes are added.
const MOUNTS: &str = "        volumeMounts:\n";
const VARIABLES: &str = "        env:\n";
const VOLUMES: &str = "      volumes:\n";
/// The host's argument after which further arguments are added.
const PLUGINS_ARGUMENT: &str = "        - --plugins=/plugins\n";
/// The server's argument after which further arguments are added.
const SERVER_ARGUMENT: &str = "        - server\n";
/// The path of the files of OpsJobs in a pod of the host.
const DATA: &str = "/data";
/// The path of the CA certificates in a pod of the host.
const AUTHORITIES: &str = "/etc/oarlock-ca";
/// The line before which the pod's token mount is turned off.
const ACCOUNT: &str = "      serviceAccountName: ";
/// The labels of a pod of the host, without and with the server in it.
const POD_LABELS: &str = "      labels: {app.kubernetes.io/name: oarlock}\n";
const SERVING_LABELS: &str = "      labels: {app.kubernetes.io/name: oarlock, oarlock.dev/serves: rest}\n";
/// The path at which a pod finds its account's token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The line after which the group of the volumes is added.
const NON_ROOT: &str = "        runAsNonRoot: true\n";
/// The comments in the text about its replicas.
const TWO: &str = "# The host: two replicas, one of which leads.";
const ONE: &str = "# The host: one replica, because only one pod can have the volume.";

/// The source of a Deployment's plugins, if it is not the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginSource {
    /// A ConfigMap of the host's namespace, at most 1 MiB.
    ConfigMap(String),
    /// A PersistentVolumeClaim of the host's namespace.
    Claim(String),
    /// An image with the files at its root, mounted as a volume.
    Image(String),
}

impl FromStr for PluginSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        let source = match text.split_once('/') {
            Some(("configmap", rest)) => name(rest).map(Self::ConfigMap),
            Some(("pvc", rest)) => name(rest).map(Self::Claim),
            Some(("image", rest)) => name(rest).map(Self::Image),
            _ => None,
        };
        source.ok_or_else(|| "give configmap/NAME, pvc/NAME or image/REFERENCE".to_owned())
    }
}

impl PluginSource {
    fn volume(&self) -> Value {
        match self {
            Self::ConfigMap(name) => json!({"name": "plugins", "configMap": {"name": name}}),
            Self::Claim(name) => {
                json!({"name": "plugins", "persistentVolumeClaim": {"claimName": name, "readOnly": true}})
            }
            Self::Image(reference) => json!({"name": "plugins", "image": {"reference": reference}}),
        }
    }
}

/// The place for the files of OpsJobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// A PersistentVolumeClaim of the host's namespace. Only one process may use its volume.
    Claim(String),
    /// A bucket, by its URL.
    Bucket(String),
}

impl FromStr for DataPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let claim = text.strip_prefix("pvc/").filter(|name| !name.is_empty()).map(|name| Self::Claim(name.to_owned()));
        let bucket =
            || text.strip_prefix("s3://").filter(|name| !name.is_empty()).map(|_| Self::Bucket(text.to_owned()));
        claim.or_else(bucket).ok_or_else(|| {
            "give pvc/NAME, a PersistentVolumeClaim of the host's namespace, or s3://BUCKET/PREFIX".to_owned()
        })
    }
}

/// The settings of a Deployment of the host.
#[derive(Clone, Copy, Debug)]
pub struct Deployed<'a> {
    /// The image of the host.
    pub image: &'a str,
    /// The text of a grants file.
    pub grants: &'a str,
    /// The source of the plugins; `None` for those in the image.
    pub plugins: Option<&'a PluginSource>,
    /// The place for the files of OpsJobs.
    pub data: Option<&'a DataPlace>,
    /// The Secret with the credentials of that place, as variables.
    pub data_secret: Option<&'a str>,
    /// The Secret with the address of the history.
    pub history_secret: Option<&'a str>,
    /// The id of the cluster.
    pub cluster_id: Option<&'a str>,
    /// The registry to which images are exported.
    pub export_registry: Option<&'a str>,
    /// Other hosts to which the registry may redirect a push.
    pub export_hosts: &'a [String],
    /// The Secret with the registry's credentials.
    pub export_secret: Option<&'a str>,
    /// The ConfigMap with the CA certificates of registries and stores.
    pub ca: Option<&'a str>,
    /// The Secret with the certificate of the REST API; `None` without a server.
    pub rest: Option<&'a str>,
    /// True if the server serves the pages of jobs too.
    pub web: bool,
    /// True if these pages show logs of failed Jobs.
    pub web_logs: bool,
    /// The Secret for the server instead of `data_secret`. Its keys need only permission to read.
    pub server_data_secret: Option<&'a str>,
    /// The Secret for the server instead of `history_secret`. Its role needs only to read jobs and to write requests.
    pub server_history_secret: Option<&'a str>,
    /// The account of the host.
    pub host: &'a HostAccount,
}

/// Returns the Deployment of the host, its grants as a ConfigMap, and the documents that keep it available and
/// isolated.
///
/// The name of the ConfigMap follows from its content. So during a rollout, old and new pods each keep the grants that
/// they were applied with.
///
/// # Errors
/// If the text cannot be written as YAML.
pub fn deployment(of: &Deployed<'_>) -> Result<String, ManifestsError> {
    let Deployed { image, grants, plugins, data, rest, host, .. } = *of;
    // A JSON string is valid YAML, whatever characters an image name has.
    let mut text = host.fill(DEPLOYMENT).replace("image: IMAGE", &format!("image: {}", json!(image)));
    text = text.replace("value: IMAGE}", &format!("value: {}}}", json!(image)));
    let name = name_of(grants);
    text = text.replace("configMap: {name: GRANTS}", &format!("configMap: {{name: {name}}}"));
    text = text.replace("--grants-digest=DIGEST", &format!("--grants-digest={}", oarlock_wasm::grants_digest(grants)));
    if let Some(source) = plugins {
        let mount = json!({"name": "plugins", "mountPath": PLUGINS, "readOnly": true});
        text = text.replace(MOUNTS, &format!("{MOUNTS}        - {mount}\n"));
        text = text.replace(VOLUMES, &format!("{VOLUMES}      - {}\n", source.volume()));
    }
    if let Some(DataPlace::Claim(claim)) = data {
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
        let mount = json!({"name": "data", "mountPath": DATA});
        text = text.replace(MOUNTS, &format!("{MOUNTS}        - {mount}\n"));
        text = text.replace(VOLUMES, &format!("{VOLUMES}      - {volume}\n"));
        text = text.replace(PLUGINS_ARGUMENT, &format!("{PLUGINS_ARGUMENT}        - --data={DATA}\n"));
        text = text.replace("  replicas: 2\n", "  replicas: 1\n  strategy: {type: Recreate}\n");
        text = text.replace(NON_ROOT, &format!("{NON_ROOT}        fsGroup: 65532\n"));
        text = text.replace(TWO, ONE);
    }
    if host.plugin_accounts != HostAccount::default().plugin_accounts {
        let argument = format!("        - --plugin-accounts-namespace={}\n", host.plugin_accounts);
        text = text.replace(PLUGINS_ARGUMENT, &format!("{PLUGINS_ARGUMENT}{argument}"));
    }
    text = of.with_stores(text, PLUGINS_ARGUMENT, of.export_arguments());
    text = of.with_secrets(text, of.data_secret, of.history_secret);
    text = text.replace(VOLUMES, &format!("{VOLUMES}{}", of.authorities()));
    let shares_pod = matches!(data, Some(DataPlace::Claim(_)));
    let server = rest.map(|_| of.server());
    let (token, server) = match server {
        Some(server) if shares_pod => {
            text = beside(&text, &server, rest.unwrap_or_default());
            (Some(host.fill(SERVER_TOKEN)), None)
        }
        server => (None, server.map(|container| of.own_pod(&container, rest.unwrap_or_default()))),
    };
    let secrets = of.export_secret.map(|name| export_role(name, host)).transpose()?;
    let documents = [Some(grants_document(grants, host)?), Some(text), secrets, token, server];
    Ok(join(&documents.iter().flatten().map(String::as_str).collect::<Vec<_>>()))
}

impl<'a> Deployed<'a> {
    /// Returns settings with these grants and the plugins of the image, and nothing else.
    pub fn bare(image: &'a str, grants: &'a str, host: &'a HostAccount) -> Self {
        Self {
            image,
            grants,
            plugins: None,
            data: None,
            data_secret: None,
            history_secret: None,
            cluster_id: None,
            export_registry: None,
            export_hosts: &[],
            export_secret: None,
            ca: None,
            rest: None,
            web: false,
            web_logs: false,
            server_data_secret: None,
            server_history_secret: None,
            host,
        }
    }

    /// Returns the text with the arguments of the cluster id and the bucket, and with `more`, after the argument
    /// `after`.
    fn with_stores(&self, text: String, after: &str, more: Vec<String>) -> String {
        let mut arguments: Vec<String> = self.cluster_id.iter().map(|id| format!("--cluster-id={id}")).collect();
        if let Some(DataPlace::Bucket(url)) = self.data {
            arguments.push(format!("--artefacts={url}"));
            arguments.extend(self.ca.iter().map(|_| format!("--artefacts-ca={AUTHORITIES}/ca.crt")));
        }
        arguments.extend(more);
        let lines: String = arguments.iter().map(|argument| format!("        - {}\n", json!(argument))).collect();
        let text = text.replace(after, &format!("{after}{lines}"));
        let mount = json!({"name": "authorities", "mountPath": AUTHORITIES, "readOnly": true});
        self.ca.iter().fold(text, |text, _| text.replace(MOUNTS, &format!("{MOUNTS}        - {mount}\n")))
    }

    /// Returns the arguments of the export registry.
    fn export_arguments(&self) -> Vec<String> {
        let Some(registry) = self.export_registry else { return Vec::new() };
        let mut arguments = vec![format!("--export-registry={registry}")];
        arguments.extend(self.export_secret.iter().map(|name| format!("--export-secret={name}")));
        arguments.extend(self.export_hosts.iter().map(|host| format!("--export-host={host}")));
        arguments.extend(self.ca.iter().map(|_| format!("--export-ca={AUTHORITIES}/ca.crt")));
        arguments
    }

    /// Returns the text with the credentials of the bucket and of the history from these Secrets.
    fn with_secrets(&self, mut text: String, data: Option<&str>, history: Option<&str>) -> String {
        if let Some(secret) = data {
            let from = json!([{"secretRef": {"name": secret}}]);
            text = text.replace(MOUNTS, &format!("        envFrom: {from}\n{MOUNTS}"));
        }
        if let Some(secret) = history {
            let key = json!({"secretKeyRef": {"name": secret, "key": "url"}});
            let variable = json!({"name": "OARLOCK_HISTORY", "valueFrom": key});
            text = text.replace(VARIABLES, &format!("{VARIABLES}        - {variable}\n"));
        }
        text
    }

    /// Returns the volume of the CA certificates.
    fn authorities(&self) -> String {
        let volume = |name: &str| json!({"name": "authorities", "configMap": {"name": name}});
        self.ca.map(|name| format!("      - {}\n", volume(name))).unwrap_or_default()
    }

    /// Returns the container of the server.
    fn server(&self) -> String {
        let mut text = self.host.fill(SERVER).replace("image: IMAGE", &format!("image: {}", json!(self.image)));
        text = self.with_stores(text, SERVER_ARGUMENT, Vec::new());
        text = self.with_secrets(
            text,
            self.server_data_secret.or(self.data_secret),
            self.server_history_secret.or(self.history_secret),
        );
        if let Some(DataPlace::Claim(_)) = self.data {
            let mounts = [
                json!({"name": "data", "mountPath": DATA}),
                json!({"name": "server-token", "mountPath": TOKEN, "readOnly": true}),
            ];
            let mounts: String = mounts.iter().map(|mount| format!("        - {mount}\n")).collect();
            text = text.replace(MOUNTS, &format!("{MOUNTS}{mounts}"));
            text = text.replace(SERVER_ARGUMENT, &format!("{SERVER_ARGUMENT}        - --data={DATA}\n"));
        }
        if self.web {
            let logs = if self.web_logs { "        - --web-logs\n" } else { "" };
            text = text.replace(SERVER_ARGUMENT, &format!("{SERVER_ARGUMENT}        - --web\n{logs}"));
            text = text.replace(OF_SERVER, OF_SERVER_WITH_PAGES);
        }
        text
    }

    /// Returns the Deployment of the server with its own pods.
    fn own_pod(&self, container: &str, certificate: &str) -> String {
        let text = self.host.fill(SERVER_DEPLOYMENT).replace("CONTAINER\n", container);
        let text = text.replace(VOLUMES, &format!("{VOLUMES}{}", self.authorities()));
        text.replace("secretName: CERTIFICATE", &format!("secretName: {}", json!(certificate)))
    }
}

/// The memory limit of the server, and the limit with pages.
const OF_SERVER: &str = "limits: {memory: 768Mi}";
const OF_SERVER_WITH_PAGES: &str = "limits: {memory: 1Gi}";

/// Returns the Deployment of the host with the server in its pod, because they share a volume. Each container gets a
/// token of its own account.
fn beside(text: &str, server: &str, certificate: &str) -> String {
    let projected = json!({"name": "token", "projected": {"defaultMode": 0o440, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}});
    let of_server =
        json!({"name": "server-token", "secret": {"secretName": "oarlock-server-token", "defaultMode": 0o440}});
    let of_rest = json!({"name": "rest", "secret": {"secretName": certificate, "defaultMode": 0o440}});
    let volumes: String = [projected, of_server, of_rest].iter().map(|volume| format!("      - {volume}\n")).collect();
    let mount = json!({"name": "token", "mountPath": TOKEN, "readOnly": true});
    text.replace(MOUNTS, &format!("{MOUNTS}        - {mount}\n"))
        .replace(VOLUMES, &format!("{server}{VOLUMES}{volumes}"))
        .replace(ACCOUNT, &format!("      automountServiceAccountToken: false\n{ACCOUNT}"))
        .replace(POD_LABELS, SERVING_LABELS)
}

/// Returns the role that lets the host read the Secret with which it pushes images.
///
/// # Errors
/// If the text cannot be written as YAML.
pub fn export_role(secret: &str, host: &HostAccount) -> Result<String, ManifestsError> {
    let metadata =
        json!({"name": "oarlock-export", "namespace": host.namespace, "labels": {"app.kubernetes.io/name": "oarlock"}});
    let group = "rbac.authorization.k8s.io";
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": ["get"]}]});
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "oarlock-export"},
        "subjects": [{"kind": "ServiceAccount", "name": host.name, "namespace": host.namespace}]});
    let yaml =
        |document: &Value| serde_saphyr::to_string(document).map_err(|error| ManifestsError::Yaml(Box::new(error)));
    Ok(join(&[&yaml(&role)?, &yaml(&binding)?]))
}

/// Returns the ConfigMap of these grants.
///
/// # Errors
/// If the text cannot be written as YAML.
pub(super) fn grants_document(grants: &str, host: &HostAccount) -> Result<String, ManifestsError> {
    grants_map(&name_of(grants), grants, host)
}

/// Returns the name of the ConfigMap with these grants.
fn name_of(grants: &str) -> String {
    let digest = oarlock_wasm::digest(grants.as_bytes());
    let digits: String = digest.chars().skip_while(|letter| *letter != ':').skip(1).take(DIGITS).collect();
    format!("oarlock-grants-{digits}")
}

/// Returns a ConfigMap with the text of the grants, including lines and comments. The ConfigMap is immutable, because
/// its name follows from its content.
fn grants_map(name: &str, grants: &str, host: &HostAccount) -> Result<String, ManifestsError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ConfigMap<'a> {
        api_version: &'a str,
        kind: &'a str,
        metadata: Value,
        immutable: bool,
        data: BTreeMap<&'a str, LitStr<'a>>,
    }
    let labels = json!({"app.kubernetes.io/name": "oarlock", "app.kubernetes.io/component": "grants"});
    let metadata = json!({"name": name, "namespace": host.namespace, "labels": labels});
    let data = BTreeMap::from([("grants.yaml", LitStr(grants))]);
    let map = ConfigMap { api_version: "v1", kind: "ConfigMap", metadata, immutable: true, data };
    serde_saphyr::to_string(&map).map_err(|error| ManifestsError::Yaml(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::{HOST_NAMESPACE, SHIPPED_GRANTS};

    #[test]
    fn a_bucket_and_a_registry_are_named_with_their_secrets_and_authorities() {
        let (host, place) = (HostAccount::default(), "s3://files/oarlock".parse().unwrap());
        let of = Deployed {
            data: Some(&place),
            data_secret: Some("files"),
            history_secret: Some("history"),
            cluster_id: Some("blue"),
            export_registry: Some("harbor.example.com"),
            export_hosts: &["auth.example.com".to_owned()],
            export_secret: Some("push"),
            ca: Some("own-ca"),
            ..Deployed::bare("x", SHIPPED_GRANTS, &host)
        };
        let documents: Vec<Value> = serde_saphyr::from_multiple(&deployment(&of).unwrap()).unwrap();
        let spec = &documents[1]["spec"];
        assert_eq!(spec["replicas"], 2, "every process may have a bucket");
        let container = &spec["template"]["spec"]["containers"][0];
        let arguments = [
            "--cluster-id=blue",
            "--artefacts=s3://files/oarlock",
            "--artefacts-ca=/etc/oarlock-ca/ca.crt",
            "--export-registry=harbor.example.com",
            "--export-secret=push",
            "--export-host=auth.example.com",
            "--export-ca=/etc/oarlock-ca/ca.crt",
        ];
        for argument in arguments {
            assert!(container["args"].as_array().unwrap().contains(&json!(argument)), "{argument}: {container}");
        }
        let history =
            json!({"name": "OARLOCK_HISTORY", "valueFrom": {"secretKeyRef": {"name": "history", "key": "url"}}});
        assert!(container["env"].as_array().unwrap().contains(&history), "{container}");
        assert_eq!(container["envFrom"], json!([{"secretRef": {"name": "files"}}]));
        let role = documents.iter().find(|document| document["kind"] == "Role").unwrap();
        assert_eq!(role["rules"][0]["resourceNames"], json!(["push"]));
        for wrong in ["", "pvc/", "s3://", "data", "file:/data"] {
            assert!(wrong.parse::<DataPlace>().is_err(), "{wrong}");
        }
    }

    /// Returns all documents. The first two are the ConfigMap of the grants and the Deployment.
    fn printed(image: &str, grants: &str, plugins: Option<&str>) -> Vec<Value> {
        let source = plugins.map(|text| text.parse().unwrap());
        let host = HostAccount::default();
        let of = Deployed { plugins: source.as_ref(), ..Deployed::bare(image, grants, &host) };
        let text = deployment(&of).unwrap();
        serde_saphyr::from_multiple(&text).unwrap()
    }

    #[test]
    fn the_deployment_takes_any_image_name_and_mounts_the_grants() {
        let documents = printed("registry.example:5000/a b:\"1\"", SHIPPED_GRANTS, None);
        let (grants, deployment) = (&documents[0], &documents[1]);
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "registry.example:5000/a b:\"1\"");
        assert_eq!((&grants["data"]["grants.yaml"], &grants["immutable"]), (&json!(SHIPPED_GRANTS), &json!(true)));
        assert_eq!(grants["metadata"]["namespace"], HOST_NAMESPACE);
        let volumes = deployment["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
        assert!(volumes.iter().all(|volume| volume["name"] != "plugins"), "{volumes:?}");
    }

    #[test]
    fn the_host_knows_another_namespace_of_the_accounts_of_plugins() {
        let argument = |plugin_accounts: &str| {
            let host = HostAccount { plugin_accounts: plugin_accounts.to_owned(), ..HostAccount::default() };
            let text = deployment(&Deployed::bare("x", SHIPPED_GRANTS, &host)).unwrap();
            text.contains("- --plugin-accounts-namespace=robots\n")
        };
        assert!(argument("robots") && !argument("oarlock-plugins"));
    }

    #[test]
    fn other_grants_have_another_name_and_each_deployment_mounts_its_own() {
        let named = |grants: &str| {
            let documents = printed("x", grants, None);
            let name = documents[0]["metadata"]["name"].as_str().unwrap().to_owned();
            let volume = json!({"name": "grants", "configMap": {"name": name}});
            let volumes = documents[1]["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
            assert!(volumes.contains(&volume), "{volumes:?}");
            name
        };
        let (one, other) = (named(SHIPPED_GRANTS), named(&SHIPPED_GRANTS.replace("name: replace", "name: other")));
        assert!(one.starts_with("oarlock-grants-") && one != other, "{one} {other}");
        assert_eq!(one, named(SHIPPED_GRANTS));
    }

    #[test]
    fn the_grants_can_be_read_in_what_is_printed() {
        let host = HostAccount::default();
        let of = Deployed::bare("x", SHIPPED_GRANTS, &host);
        let text = deployment(&of).unwrap();
        assert!(text.contains("\n    # Grants the Replace plugin"), "{text}");
        for odd in ["", "  indented: first\n", "a: 1", "a: 1\n\n\n", "a: |\n  ---\n  b\n---\n# \u{e9}\n"] {
            let documents = printed("x", odd, None);
            let (grants, arguments) =
                (&documents[0], &documents[1]["spec"]["template"]["spec"]["containers"][0]["args"]);
            let stored = oarlock_wasm::grants_digest(grants["data"]["grants.yaml"].as_str().unwrap());
            assert!(arguments.as_array().unwrap().contains(&json!(format!("--grants-digest={stored}"))), "{arguments}");
            // A YAML block drops blank lines at its end, which have no meaning.
            assert_eq!(grants["data"]["grants.yaml"].as_str().map(str::trim_end), Some(odd.trim_end()));
        }
    }

    #[test]
    fn files_of_ops_jobs_are_on_a_volume_that_one_replica_has() {
        let host = HostAccount::default();
        let place = "pvc/oarlock-data".parse().unwrap();
        let of = Deployed { data: Some(&place), ..Deployed::bare("x", SHIPPED_GRANTS, &host) };
        let documents: Vec<Value> = serde_saphyr::from_multiple(&deployment(&of).unwrap()).unwrap();
        let spec = &documents[1]["spec"];
        assert_eq!((&spec["replicas"], &spec["strategy"]["type"]), (&json!(1), &json!("Recreate")));
        let pod = &spec["template"]["spec"];
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "oarlock-data"}});
        assert!(pod["volumes"].as_array().unwrap().contains(&volume), "{pod}");
        let container = &pod["containers"][0];
        let mount = json!({"name": "data", "mountPath": "/data"});
        assert!(container["volumeMounts"].as_array().unwrap().contains(&mount));
        assert!(container["args"].as_array().unwrap().contains(&json!("--data=/data")));
        assert_eq!(pod["securityContext"]["fsGroup"], 65_532);
    }

    /// Returns the documents with a server.
    fn served(of: Deployed<'_>) -> Vec<Value> {
        let of = Deployed { rest: Some("oarlock-rest-tls"), ..of };
        serde_saphyr::from_multiple(&deployment(&of).unwrap()).unwrap()
    }

    fn named<'a>(documents: &'a [Value], kind: &str, name: &str) -> &'a Value {
        let is = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == name;
        documents.iter().find(is).unwrap()
    }

    #[test]
    fn the_server_has_pods_an_account_and_secrets_of_its_own() {
        let (host, place) = (HostAccount::default(), "s3://files/oarlock".parse().unwrap());
        let documents = served(Deployed {
            data: Some(&place),
            data_secret: Some("files"),
            server_data_secret: Some("files-to-read"),
            history_secret: Some("history"),
            cluster_id: Some("blue"),
            export_registry: Some("harbor.example.com"),
            ca: Some("own-ca"),
            ..Deployed::bare("x", SHIPPED_GRANTS, &host)
        });
        let (own, other) = (named(&documents, "Deployment", "oarlock-server"), &documents[1]);
        let (pod, labels) = (&own["spec"]["template"]["spec"], &own["spec"]["template"]["metadata"]["labels"]);
        assert_eq!(labels, &json!({"app.kubernetes.io/name": "oarlock-server", "oarlock.dev/serves": "rest"}));
        assert_eq!((&own["spec"]["replicas"], &pod["serviceAccountName"]), (&json!(2), &json!("oarlock-server")));
        let container = &pod["containers"][0];
        let arguments = container["args"].as_array().unwrap();
        let wanted = [
            "--listen=:8443",
            "--cert=/etc/oarlock-rest/tls.crt",
            "--cluster-id=blue",
            "--artefacts=s3://files/oarlock",
        ];
        assert!(wanted.iter().all(|one| arguments.contains(&json!(one))), "{arguments:?}");
        assert!(!format!("{arguments:?}").contains("export"), "what exports images is the host's: {arguments:?}");
        assert_eq!(container["envFrom"], json!([{"secretRef": {"name": "files-to-read"}}]));
        let history =
            json!({"name": "OARLOCK_HISTORY", "valueFrom": {"secretKeyRef": {"name": "history", "key": "url"}}});
        assert!(container["env"].as_array().unwrap().contains(&history), "{}", container["env"]);
        assert_eq!(
            container["ports"],
            json!([{"name": "rest", "containerPort": 8443}, {"name": "probes", "containerPort": 8081}])
        );
        let volumes = pod["volumes"].to_string();
        assert!(volumes.contains(r#""secretName":"oarlock-rest-tls""#) && volumes.contains("own-ca"), "{volumes}");
        let other = other["spec"]["template"].to_string();
        assert!(!other.contains("rest") && !other.contains("files-to-read"), "the host faces no network: {other}");
        named(&documents, "PodDisruptionBudget", "oarlock-server");
        assert!(documents.iter().all(|one| one["kind"] != "Secret"), "its pods mount a token that ends");
    }

    #[test]
    fn with_a_volume_the_server_is_beside_the_host_and_each_has_the_token_of_its_account_alone() {
        let (host, place) = (HostAccount::default(), "pvc/oarlock-data".parse().unwrap());
        let documents = served(Deployed { data: Some(&place), ..Deployed::bare("x", SHIPPED_GRANTS, &host) });
        assert_eq!(documents.iter().filter(|one| one["kind"] == "Deployment").count(), 1);
        let template = &documents[1]["spec"]["template"];
        let pod = &template["spec"];
        assert_eq!(template["metadata"]["labels"]["oarlock.dev/serves"], "rest");
        assert_eq!(
            (&pod["automountServiceAccountToken"], &pod["serviceAccountName"]),
            (&json!(false), &json!("oarlock"))
        );
        let [of_host, of_server] = pod["containers"].as_array().unwrap().as_slice() else { panic!("{pod}") };
        let token_of = |container: &Value| {
            let mounts = container["volumeMounts"].as_array().unwrap().clone();
            let mut at = mounts.into_iter().filter(|mount| mount["mountPath"] == TOKEN);
            let name = at.next().map(|mount| mount["name"].clone()).unwrap();
            assert!(at.next().is_none());
            pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == name).unwrap().clone()
        };
        assert!(token_of(of_host)["projected"]["sources"][0]["serviceAccountToken"].is_object());
        let secret = token_of(of_server)["secret"]["secretName"].clone();
        let token = named(&documents, "Secret", secret.as_str().unwrap());
        assert_eq!(token["metadata"]["annotations"]["kubernetes.io/service-account.name"], "oarlock-server");
        let mounts = |container: &Value| container["volumeMounts"].to_string();
        assert!(!mounts(of_server).contains(r#""name":"token""#) && !mounts(of_host).contains("server-token"));
        assert!(
            mounts(of_server).contains(r#""mountPath":"/data""#) && mounts(of_host).contains(r#""mountPath":"/data""#)
        );
        assert!(of_server["args"].as_array().unwrap().contains(&json!("--data=/data")));
        let memory = |container: &Value| container["resources"]["limits"]["memory"].clone();
        assert_eq!((memory(of_host), memory(of_server)), (json!("512Mi"), json!("768Mi")));
        // A quarter of the memory is for objects, and 64 MiB for the process itself.
        const { assert!(oarlock_rest::MOST_MEMORY <= (768 - 128 - 64) * 1024 * 1024) };
        assert_ne!(of_host["livenessProbe"], of_server["livenessProbe"]);
    }

    #[test]
    fn the_server_with_pages_has_their_flag_and_their_memory() {
        let host = HostAccount::default();
        let of = |web, web_logs| {
            let documents = served(Deployed { web, web_logs, ..Deployed::bare("x", SHIPPED_GRANTS, &host) });
            named(&documents, "Deployment", "oarlock-server")["spec"]["template"]["spec"]["containers"][0].clone()
        };
        let flags = |container: &Value| {
            let args = container["args"].as_array().unwrap().clone();
            args.into_iter().filter(|one| one.as_str().unwrap().starts_with("--web")).collect::<Vec<_>>()
        };
        let (with, without) = (of(true, false), of(false, false));
        assert_eq!((flags(&with), flags(&without)), (vec![json!("--web")], vec![]));
        assert_eq!(flags(&of(true, true)), ["--web", "--web-logs"]);
        assert_eq!(with["resources"]["limits"]["memory"], "1Gi");
        // A quarter of the memory is for objects, 64 MiB are for open pages, and 64 MiB for the process itself.
        const {
            let most = oarlock_rest::MOST_MEMORY + oarlock_rest::MOST_MEMORY_OF_HTTP2;
            assert!(most <= (1_024 - 256 - 64 - 64) * 1024 * 1024);
        }
    }

    #[test]
    fn plugins_come_from_a_config_map_a_claim_or_an_image() {
        for (source, volume) in [
            ("configmap/p", json!({"name": "plugins", "configMap": {"name": "p"}})),
            ("pvc/p", json!({"name": "plugins", "persistentVolumeClaim": {"claimName": "p", "readOnly": true}})),
            ("image/r.example/a/b:1", json!({"name": "plugins", "image": {"reference": "r.example/a/b:1"}})),
        ] {
            let documents = printed("x", SHIPPED_GRANTS, Some(source));
            let pod = &documents[1]["spec"]["template"]["spec"];
            assert!(pod["volumes"].as_array().unwrap().contains(&volume), "{pod}");
            let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
            let at = mounts.iter().find(|mount| mount["name"] == "plugins").unwrap();
            assert_eq!((at["mountPath"].as_str(), at["readOnly"].as_bool()), (Some(PLUGINS), Some(true)));
            let arguments = pod["containers"][0]["args"].as_array().unwrap();
            assert!(arguments.contains(&json!(format!("--plugins={PLUGINS}"))), "the host reads that directory");
        }
        for wrong in ["", "p", "configmap/", "secret/p"] {
            assert!(wrong.parse::<PluginSource>().unwrap_err().contains("configmap/NAME"));
        }
    }

    #[test]
    fn the_deployment_comes_with_a_budget_a_priority_a_policy_and_replicas_apart() {
        let documents = printed("oarlock:1", SHIPPED_GRANTS, None);
        let named: Vec<_> = documents.iter().map(|document| document["kind"].as_str().unwrap()).collect();
        assert_eq!(named, ["ConfigMap", "Deployment", "PodDisruptionBudget", "PriorityClass", "NetworkPolicy"]);
        let labels = &documents[1]["spec"]["template"]["metadata"]["labels"];
        let spec = &documents[1]["spec"]["template"]["spec"];
        assert_eq!(spec["priorityClassName"], documents[3]["metadata"]["name"]);
        let selected = [
            &documents[1]["spec"]["selector"]["matchLabels"],
            &documents[2]["spec"]["selector"]["matchLabels"],
            &documents[4]["spec"]["podSelector"]["matchLabels"],
            &spec["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
            &spec["topologySpreadConstraints"][1]["labelSelector"]["matchLabels"],
        ];
        assert!(selected.iter().all(|selected| *selected == labels), "{selected:?}");
        let port = &documents[4]["spec"]["ingress"][0]["ports"][0]["port"];
        assert_eq!(*port, spec["containers"][0]["ports"][0]["name"]);
    }
}
