//! The bucket for files, and the client for it.
//!
//! The client uses TLS with ring, and its requests have timeouts and limited retries. It must not show a secret. It must not send a secret
//! unencrypted to another machine unless an admin allows that.

use std::fmt;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path as Place;
use object_store::{BackoffConfig, Certificate, ClientOptions, RetryConfig};
use url::{Host, Url};

use crate::backend::{Bucket, OF_PIECE, TIMEOUT};
use crate::failed::causes;

/// The default region. Most stores other than S3 itself accept it.
const REGION: &str = "us-east-1";
/// The content type of all files. Browsers show the files, reports too, as text and run nothing.
const TEXT: &str = "text/plain; charset=utf-8";
const RETRIES: usize = 3;
/// The environment variables for fetched credentials, as a ServiceAccount has them: of an AWS role, and of EKS Pod Identity or ECS.
const FETCHED: [&str; 7] = [
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
];

/// The options of a bucket.
#[derive(Clone, Default)]
pub struct S3Options {
    /// The URL of the store, or `None` for AWS. The bucket name follows in the path.
    pub endpoint: Option<String>,
    /// The region. The default is `us-east-1`.
    pub region: Option<String>,
    /// The trusted CA certificates in PEM, beside those of the system.
    pub ca: Option<String>,
    /// True if plain HTTP to other machines is allowed. Then anyone on the network path can read files and signatures.
    pub allow_http: bool,
    /// The access key.
    pub access_key: Option<String>,
    /// The secret of the access key.
    pub secret_key: Option<String>,
    /// The session token of a temporary access key.
    pub session_token: Option<String>,
    /// The variables for fetching and renewing credentials, if there is no access key.
    pub fetched: Vec<(&'static str, String)>,
}

impl S3Options {
    /// Returns options with the credentials from environment variables, and with defaults otherwise.
    ///
    /// The variables are `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`. Fetched credentials use one of three sets:
    /// - `AWS_ROLE_ARN`, `AWS_ROLE_SESSION_NAME`, `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ENDPOINT_URL_STS`
    /// - `AWS_CONTAINER_CREDENTIALS_FULL_URI` and `AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE`
    /// - `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`
    ///
    /// The credentials of an EC2 instance are not used.
    pub fn of_variables(value: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name| value(name).filter(|value| !value.is_empty());
        Self {
            access_key: value("AWS_ACCESS_KEY_ID"),
            secret_key: value("AWS_SECRET_ACCESS_KEY"),
            session_token: value("AWS_SESSION_TOKEN"),
            fetched: FETCHED.iter().filter_map(|name| Some((*name, value(name)?))).collect(),
            ..Self::default()
        }
    }

    /// Returns true if the variables suffice to fetch credentials.
    fn can_fetch(&self) -> bool {
        let has = |name: &str| self.fetched.iter().any(|(own, _)| *own == name);
        let of_pod = has("AWS_CONTAINER_CREDENTIALS_FULL_URI") && has("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        (has("AWS_ROLE_ARN") && has("AWS_WEB_IDENTITY_TOKEN_FILE"))
            || of_pod
            || has("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    }
}

impl fmt::Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, region, ca, allow_http, access_key, secret_key, session_token, fetched } = self;
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "hidden");
        f.debug_struct("S3Options")
            .field("endpoint", endpoint)
            .field("region", region)
            .field("ca", &ca.as_ref().map(String::len))
            .field("allow_http", allow_http)
            .field("access_key", &hidden(access_key))
            .field("secret_key", &hidden(secret_key))
            .field("session_token", &hidden(session_token))
            .field("fetched", &fetched.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish()
    }
}

/// The reason why the settings of a bucket are invalid.
#[derive(Debug, thiserror::Error)]
pub enum S3PlaceFailed {
    /// The URL is not the URL of a bucket.
    #[error("{0} is not the URL of a bucket: write s3://BUCKET or s3://BUCKET/PREFIX")]
    Scheme(String),
    /// The name is not a valid bucket name.
    #[error("{0:?} is not the name of a bucket: it has 3 to 63 of the characters a-z, 0-9, - and .")]
    Bucket(String),
    /// The prefix is not a valid path.
    #[error("{prefix:?} is not a prefix of files: write names with / between them")]
    Prefix {
        /// The prefix in the URL.
        prefix: String,
        /// The error in the prefix.
        #[source]
        source: object_store::path::Error,
    },
    /// The endpoint is not an HTTP URL.
    #[error(
        "the S3 endpoint is not a URL such as https://s3.example.com, without user, query and fragment: correct it"
    )]
    Endpoint,
    /// The endpoint would receive files unencrypted.
    #[error("the S3 endpoint at {0} is reached by plain HTTP: use https")]
    Http(String),
    /// There are no credentials.
    #[error(
        "there are no credentials of S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the ServiceAccount a role with \
         AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE"
    )]
    NoCredentials,
    /// The access key or its secret is missing.
    #[error("an access key of S3 and its secret belong together: set {0} too")]
    HalfCredentials(&'static str),
}

/// Returns true if the system has no CA certificates, as in a minimal image. Then a client with system certificates fails before it reads
/// the bundle.
fn has_no_roots() -> bool {
    rustls_native_certs::load_native_certs().certs.is_empty()
}

/// The folder for all files, within the bucket or the prefix.
const OWN: &str = "artefacts";

/// A bucket, or a prefix within a bucket.
#[derive(Clone, Debug)]
pub struct S3Place {
    bucket: String,
    prefix: Place,
    endpoint: Option<Url>,
    options: S3Options,
    timeout: Duration,
}

impl S3Place {
    /// Reads `s3://BUCKET` or `s3://BUCKET/PREFIX`.
    ///
    /// # Errors
    /// If the URL or an option is invalid.
    pub fn read(url: &str, options: &S3Options) -> Result<Self, S3PlaceFailed> {
        let rest = url.strip_prefix("s3://").ok_or_else(|| S3PlaceFailed::Scheme(url.to_owned()))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(is_named) || bucket.starts_with('.') {
            return Err(S3PlaceFailed::Bucket(bucket.to_owned()));
        }
        let prefix =
            Place::parse(prefix).map_err(|source| S3PlaceFailed::Prefix { prefix: prefix.to_owned(), source })?;
        // Other files under the prefix belong to other programs.
        let prefix = prefix.parts().chain(Place::from(OWN).parts()).collect();
        let endpoint = options.endpoint.as_deref().map(|own| endpoint(own, options.allow_http)).transpose()?;
        match (&options.access_key, &options.secret_key) {
            (Some(_), None) => return Err(S3PlaceFailed::HalfCredentials("AWS_SECRET_ACCESS_KEY")),
            (None, Some(_)) => return Err(S3PlaceFailed::HalfCredentials("AWS_ACCESS_KEY_ID")),
            (None, None) if !options.can_fetch() => return Err(S3PlaceFailed::NoCredentials),
            _ => {}
        }
        Ok(Self { bucket: bucket.to_owned(), prefix, endpoint, options: options.clone(), timeout: TIMEOUT })
    }

    /// Sets the timeout for answers, which is 10 s by default. A piece of a file gets six times that.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the name of the bucket for error messages.
    fn name(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("the bucket {} at {}", self.bucket, endpoint.as_str().trim_end_matches('/')),
            None => format!("the bucket {}", self.bucket),
        }
    }

    fn is_plain(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http")
    }

    pub(crate) fn connect(self) -> Result<(Bucket, Duration), String> {
        // The TLS client needs a cryptography provider. If the process has installed one, that one is used.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let name = self.name();
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&self.bucket)
            .with_region(self.options.region.as_deref().unwrap_or(REGION))
            .with_client_options(self.client().map_err(|error| format!("{name} cannot be used: {error}"))?)
            .with_retry(self.retry())
            // Not every store supports the removal of several files by one request.
            .with_disable_bulk_delete(true);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/'));
        }
        builder = match (self.options.access_key, self.options.secret_key) {
            (Some(key), Some(secret)) => {
                let builder = builder.with_access_key_id(key).with_secret_access_key(secret);
                self.options.session_token.into_iter().fold(builder, AmazonS3Builder::with_token)
            }
            _ => self.options.fetched.into_iter().fold(builder, |builder, (name, value)| {
                match name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                    Ok(key) => builder.with_config(key, value),
                    Err(_unknown) => builder,
                }
            }),
        };
        let client = builder.build().map_err(|error| {
            let cause = causes(&error).last().map_or_else(|| error.to_string(), ToString::to_string);
            format!("{name} cannot be used: {cause}: where the system has no CA certificates, give a bundle")
        })?;
        Ok((Bucket { name, prefix: self.prefix, client }, self.timeout))
    }

    fn client(&self) -> Result<ClientOptions, String> {
        let mut client = ClientOptions::new()
            .with_allow_http(self.is_plain())
            .with_connect_timeout(half(self.timeout))
            .with_timeout(self.timeout.saturating_mul(OF_PIECE))
            .with_default_content_type(TEXT)
            .with_no_system_certificates(self.is_plain() || self.options.ca.is_some() && has_no_roots());
        if let Some(bundle) = &self.options.ca {
            let bundle = Certificate::from_pem_bundle(bundle.as_bytes()).unwrap_or_default();
            if bundle.is_empty() {
                return Err("its CA bundle has no certificate: give certificates in PEM".to_owned());
            }
            client = bundle.into_iter().fold(client, ClientOptions::with_root_certificate);
        }
        Ok(client)
    }

    /// Returns the retry settings. All tries together end before the store counts as silent.
    fn retry(&self) -> RetryConfig {
        let backoff = BackoffConfig { max_backoff: half(half(self.timeout)), ..BackoffConfig::default() };
        RetryConfig { backoff, max_retries: RETRIES, retry_timeout: half(self.timeout) }
    }
}

fn half(time: Duration) -> Duration {
    time.checked_div(2).unwrap_or(time)
}

fn endpoint(text: &str, allow_http: bool) -> Result<Url, S3PlaceFailed> {
    let url = Url::parse(text).map_err(|_none| S3PlaceFailed::Endpoint)?;
    let is_more =
        !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some();
    let Some(host) = url.host().filter(|_| !is_more) else { return Err(S3PlaceFailed::Endpoint) };
    let is_own = match &host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(own) => own.is_loopback(),
        Host::Ipv6(own) => own.is_loopback(),
    };
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_own || allow_http => Ok(url),
        "http" => Err(S3PlaceFailed::Http(host.to_string())),
        _ => Err(S3PlaceFailed::Endpoint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> S3Options {
        S3Options { access_key: Some("AKI".into()), secret_key: Some("geheim".into()), ..S3Options::default() }
    }

    fn refusal(url: &str, options: &S3Options) -> String {
        S3Place::read(url, options).unwrap_err().to_string()
    }

    #[test]
    fn a_place_that_cannot_be_is_named_with_its_fix() {
        for (url, expected) in [
            ("file:///data", "write s3://BUCKET"),
            ("s3://", "\"\" is not the name of a bucket"),
            ("s3://ab", "3 to 63"),
            ("s3://Bucket/x", "a-z"),
            ("s3://user@bucket", "is not the name"),
            ("s3://bucket/a/../b", "is not a prefix"),
        ] {
            let words = refusal(url, &key());
            assert!(words.contains(expected), "{words}");
        }
        let none = S3Options { access_key: None, ..key() };
        assert!(refusal("s3://bucket", &none).contains("set AWS_ACCESS_KEY_ID too"));
        assert!(refusal("s3://bucket", &S3Options::default()).contains("set AWS_ACCESS_KEY_ID and"));
        assert_eq!(S3Place::read("s3://bucket/a/b/", &key()).unwrap().prefix.as_ref(), "a/b/artefacts");
    }

    #[test]
    fn plain_http_is_for_this_machine_alone_unless_it_is_allowed() {
        let at = |endpoint: &str, allow_http| S3Options { endpoint: Some(endpoint.into()), allow_http, ..key() };
        for own in ["http://127.0.0.1:9000", "http://[::1]:9000", "http://localhost:9000", "https://s3.example.com"] {
            S3Place::read("s3://bucket", &at(own, false)).unwrap();
        }
        for other in ["http://10.0.0.1", "http://localhost.example.com", "http://127.0.0.1.example.com"] {
            assert!(refusal("s3://bucket", &at(other, false)).contains("use https"), "{other}");
            S3Place::read("s3://bucket", &at(other, true)).unwrap();
        }
        for wrong in ["s3.example.com", "ftp://h", "https://a:b@h", "https://h/?x=1", "https://"] {
            assert!(refusal("s3://bucket", &at(wrong, true)).contains("not a URL such as"), "{wrong}");
        }
    }

    #[test]
    fn credentials_of_variables_are_taken_where_they_are_whole_and_shown_nowhere() {
        let of = |set: &'static [&'static str]| {
            S3Options::of_variables(move |name| set.contains(&name).then(|| format!("geheim-{name}")))
        };
        let whole: [&[&str]; 4] = [
            &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"],
            &["AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"],
            &["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"],
            &["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"],
        ];
        for set in whole {
            let place = S3Place::read("s3://bucket", &of(set)).unwrap();
            assert!(!format!("{place:?}").contains("geheim"), "{place:?}");
        }
        assert!(S3Place::read("s3://bucket", &of(&["AWS_ROLE_ARN"])).is_err());
        for name in FETCHED {
            assert!(name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>().is_ok(), "{name}");
        }
    }

    #[test]
    fn a_bundle_without_a_certificate_is_refused() {
        let options = S3Options { ca: Some("none".into()), ..key() };
        let place = S3Place::read("s3://bucket", &options).unwrap();
        assert!(place.connect().map(drop).unwrap_err().contains("give certificates in PEM"));
    }
}
