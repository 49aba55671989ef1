//! The client of the REST API of OpsJobs.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::client::Body;
use kube::{Client, Config};
use oarlock_view::escaped;
use serde_json::{Map, Value, json};

use super::ListFilter;
use crate::commands::jobs::{JobClient, NamespaceArgs};

/// The largest accepted answer, in bytes. A page of 10,000 jobs is smaller.
const ANSWER: usize = 32 * 1024 * 1024;

/// The flags of the REST server and its credentials.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// Address of the REST API, such as https://ops.example [default: use the Kubernetes API]
    #[arg(long, value_name = "URL", env = "OARLOCK_SERVER")]
    server: Option<String>,
    /// File with the token, made by `kubectl create token NAME --audience oarlock`; read at each start
    #[arg(long, value_name = "FILE", env = "OARLOCK_TOKEN_FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// PEM file with the CA certificates for the server [default: those that this system trusts]
    #[arg(long, value_name = "FILE", env = "OARLOCK_CA_FILE", requires = "server")]
    ca_file: Option<PathBuf>,
    /// Use a token of this ServiceAccount, NAMESPACE/NAME; the Kubernetes API issues it, if you may request it
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "server", value_parser = account)]
    as_account: Option<(String, String)>,
    /// Audience of the requested token
    #[arg(long, value_name = "NAME", default_value = "oarlock", requires = "as_account")]
    audience: String,
}

fn account(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let parts = parts.filter(|(_, name)| !name.contains('/'));
    parts
        .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
        .ok_or_else(|| "write NAMESPACE/NAME".to_owned())
}

impl ServerArgs {
    /// Connects to the server, if the flags name one.
    pub(super) async fn open(self, cluster: &NamespaceArgs) -> anyhow::Result<Option<Server>> {
        let Self { server: Some(url), token_file, ca_file, as_account, audience } = self else { return Ok(None) };
        let token = match (token_file, as_account) {
            (_, Some((namespace, name))) => token_of(cluster, &namespace, &name, audience).await?,
            (Some(file), None) => std::fs::read_to_string(&file)
                .with_context(|| format!("cannot read the token {}", file.display()))?
                .trim()
                .to_owned(),
            (None, None) => bail!("a token is needed: give --token-file FILE or --as-account NAMESPACE/NAME"),
        };
        let wrong = || format!("cannot use the server {url}: write it as https://ops.example");
        let address: http::Uri = url.parse().with_context(wrong)?;
        if !matches!(address.scheme_str(), Some("http" | "https")) || address.host().is_none() {
            bail!(wrong());
        }
        if address.scheme_str() == Some("http") && !address.host().is_some_and(is_here) {
            bail!("{url} would have the token sent in the clear: use https, or forward a port of this machine to it");
        }
        let mut config = Config::new(address);
        config.default_retry = false;
        config.auth_info.token = Some(token.into());
        if let Some(file) = ca_file {
            let text = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let certificates: Result<Vec<_>, _> = certificates_of(&text).collect();
            config.root_cert =
                Some(certificates.with_context(|| format!("{} has no certificates in PEM", file.display()))?);
        }
        let authorities = config.root_cert.clone();
        let client = Client::try_from(config).with_context(wrong)?;
        Ok(Some(Server { client, url, authorities }))
    }
}

/// Returns true if a host name means this machine.
fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Parses the certificates of a text in PEM.
fn certificates_of(text: &[u8]) -> impl Iterator<Item = Result<Vec<u8>, rustls::pki_types::pem::Error>> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    CertificateDer::pem_slice_iter(text).map(|certificate| certificate.map(|certificate| certificate.to_vec()))
}

async fn token_of(cluster: &NamespaceArgs, namespace: &str, name: &str, audience: String) -> anyhow::Result<String> {
    let client = JobClient::new(cluster.clone()).await?;
    let spec = TokenRequestSpec { audiences: vec![audience], ..TokenRequestSpec::default() };
    let request = TokenRequest { metadata: ObjectMeta::default(), spec, status: None };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.raw().clone(), namespace);
    let made = accounts.create_token_request(name, &PostParams::default(), &request).await;
    let made = made.map_err(|cause| {
        let why = if let kube::Error::Api(status) = &cause { status.message.clone() } else { cause.to_string() };
        anyhow!("cannot make a token of the ServiceAccount {namespace}/{name}: {}", escaped(&why))
    })?;
    Ok(made.status.map(|status| status.token).unwrap_or_default())
}

/// A client of a REST API server.
pub(super) struct Server {
    client: Client,
    url: String,
    /// CA certificates for the server, and for the store of its files.
    authorities: Option<Vec<Vec<u8>>>,
}

/// A file that is being downloaded.
pub(super) struct Pieces(Body);

impl Pieces {
    /// Returns the next piece of the file; `None` at its end.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<bytes::Bytes>> {
        while let Some(frame) = self.0.frame().await {
            if let Ok(piece) = frame.context("the file ended before it was whole")?.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }
}

/// The id of a created job, and the server's warnings.
pub(super) struct Made {
    pub(super) id: String,
    pub(super) warnings: Vec<String>,
}

impl Server {
    pub(super) async fn create(&self, body: String) -> anyhow::Result<Made> {
        let (answer, warnings) = self.ask(Method::POST, "/api/v1/opsjobs", Some(body)).await?;
        let id = answer.get("jobId").and_then(Value::as_str).context("the server's answer has no jobId")?;
        Ok(Made { id: id.to_owned(), warnings })
    }

    pub(super) async fn rehearse(&self, body: String) -> anyhow::Result<Value> {
        Ok(self.ask(Method::POST, "/api/v1/opsjobs?dryRun=All", Some(body)).await?.0)
    }

    /// Returns the matching jobs, the newest first.
    pub(super) async fn list(&self, filters: &[ListFilter], limit: u32) -> anyhow::Result<Vec<Value>> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &limit.to_string());
        // Without this, the server lists only recent jobs.
        query.append_pair("since", "1970-01-01T00:00:00Z");
        for ListFilter { name, value } in filters {
            query.append_pair(name, value);
        }
        let path = format!("/api/v1/opsjobs?{}", query.finish());
        let (answer, _) = self.ask(Method::GET, &path, None).await?;
        Ok(answer.get("items").and_then(Value::as_array).into_iter().flatten().cloned().collect())
    }

    /// Returns a job as a resource.
    pub(super) async fn job(&self, id: &str) -> anyhow::Result<Value> {
        Ok(resource(&self.ask(Method::GET, &path_of(id), None).await?.0))
    }

    pub(super) async fn stop(&self, id: &str) -> anyhow::Result<()> {
        self.ask(Method::POST, &format!("{}/stop", path_of(id)), None).await.map(drop)
    }

    pub(super) async fn delete(&self, id: &str) -> anyhow::Result<()> {
        self.ask(Method::DELETE, &path_of(id), None).await.map(drop)
    }

    /// Opens a file of a job, by the address that the server gave.
    pub(super) async fn file(&self, address: &str) -> anyhow::Result<Pieces> {
        let address: http::Uri = address.parse().context("the server's answer has no address of a file")?;
        let path = address.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::get(path).body(Body::empty())?;
        let answer = match ["/api/v1/artifacts/", "/artifacts/"].iter().any(|own| path.starts_with(own)) {
            true => self.client.send(request).await.with_context(|| self.unreached())?,
            false => self.store(&address)?.send(request).await.with_context(|| {
                format!("the store of files is not reached at {}", escaped(address.host().unwrap_or_default()))
            })?,
        };
        if answer.status() != StatusCode::OK {
            bail!("the server answers {} for the file: it may be gone", answer.status().as_u16());
        }
        Ok(Pieces(answer.into_body()))
    }

    /// Returns a client of the store that an address belongs to. The client sends no token, because the address is
    /// signed.
    fn store(&self, address: &http::Uri) -> anyhow::Result<Client> {
        let (scheme, authority) = (address.scheme_str(), address.authority());
        let (scheme, authority) = scheme.zip(authority).context("the server's answer has no address of a file")?;
        let mut config = Config::new(format!("{scheme}://{authority}").parse()?);
        config.default_retry = false;
        config.root_cert.clone_from(&self.authorities);
        Client::try_from(config).context("cannot reach the store of files")
    }

    fn unreached(&self) -> String {
        format!("the server {} is not reached: check --server, and --ca-file for its certificate", self.url)
    }

    async fn ask(&self, method: Method, path: &str, body: Option<String>) -> anyhow::Result<(Value, Vec<String>)> {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.unwrap_or_default().into_bytes()))?;
        let unreached = || self.unreached();
        let answer = self.client.send(request).await.with_context(unreached)?;
        let (head, body) = answer.into_parts();
        let text =
            Limited::new(body, ANSWER).collect().await.map_err(|cause| anyhow!(cause)).with_context(unreached)?;
        let value: Value = serde_json::from_slice(&text.to_bytes()).unwrap_or_default();
        if head.status != StatusCode::OK {
            let own = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
            let status = head.status.as_u16();
            if own("errorMessage").is_empty() {
                bail!("{} answers {status}: is it the REST API of OpsJobs?", self.url);
            }
            bail!("{} ({status} {})", escaped(own("errorMessage")), escaped(own("errorCode")));
        }
        let warnings = head.headers.get_all("warning").iter().filter_map(|text| text.to_str().ok());
        // The format of the header is `299 - "text"`.
        let warnings = warnings.map(|text| text.splitn(3, ' ').nth(2).unwrap_or(text).trim_matches('"').to_owned());
        Ok((value, warnings.collect()))
    }
}

fn path_of(id: &str) -> String {
    let id: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    format!("/api/v1/opsjobs/{id}")
}

/// Converts an answer about a job into the resource, as far as the answer has its fields.
fn resource(answer: &Value) -> Value {
    let own = |field: &str| answer.get(field).cloned().unwrap_or_default();
    let time = |field: &str| match answer.get(field).and_then(Value::as_str) {
        Some(time) if !time.is_empty() => json!(format!("{time}Z")),
        _ => Value::Null,
    };
    let ratio = answer.get("availableRatio").and_then(Value::as_f64).filter(|ratio| *ratio > 0.0);
    let fields = |fields: Vec<(&str, Value)>| {
        let given = fields.into_iter().filter(|(_, value)| !value.is_null());
        Value::Object(given.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
    };
    let spec = fields(vec![
        ("type", own("type")),
        ("jobName", own("jobName")),
        ("inputs", own("inputs")),
        ("targets", own("targets")),
        ("batchCount", own("batchCount")),
        ("timeoutSecond", own("timeoutSecond")),
        ("availableRatio", ratio.map_or(Value::Null, |ratio| json!(ratio.to_string()))),
        ("requester", json!({"id": own("userId"), "name": own("userName")})),
    ]);
    let status = fields(vec![
        ("phase", own("phase")),
        ("startedAt", time("startTime")),
        ("finishedAt", time("endTime")),
        ("conditions", own("conditions")),
        ("outputs", own("outputs")),
        ("progress", own("progress")),
        ("waitingFor", own("waitingFor")),
    ]);
    let metadata = fields(vec![
        ("name", own("jobId")),
        ("creationTimestamp", time("creationTime")),
        ("deletionTimestamp", time("deletionTime")),
    ]);
    json!({"metadata": metadata, "spec": spec, "status": status})
}

#[cfg(test)]
mod tests {
    use oarlock_view::{JobView, Watched as _};

    use super::*;

    #[test]
    fn a_token_goes_in_the_clear_to_this_machine_alone() {
        for here in ["localhost", "127.0.0.1", "127.8.9.1", "[::1]"] {
            assert!(is_here(here), "{here}");
        }
        for elsewhere in ["10.0.0.1", "localhost.example", "[fe80::1]", "127.0.0.1.example"] {
            assert!(!is_here(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn an_answer_is_shown_as_the_resource_that_it_is_about() {
        let answer = json!({"jobId": "a-bcdfgh", "jobName": "a", "type": "reboot", "phase": "Succeeded",
            "creationTime": "2026-01-01T00:00:00", "startTime": "2026-01-01T00:00:01", "endTime": "2026-01-01T00:00:02",
            "deletionTime": "", "availableRatio": 0.9, "progress": {"total": 1, "succeeded": 1}, "outputs": [{"name": "node", "value": "n"}]});
        let view = JobView::of_ops(&resource(&answer), None);
        assert_eq!((view.handle().as_str(), view.has_succeeded()), ("ops/a-bcdfgh", true));
    }
}
