//! The files that jobs leave: the URLs of the files, and the files themselves. Source: docs/opsjob-rest.md 7.

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode, header};
use oarlock_artefacts::{Artefacts, FileName};
use oarlock_core::object::fields::text;
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_core::ops_job::spec::OpsType;
use serde_json::Value;

use crate::answers::NamedValue;
use crate::caller::Caller;
use crate::file_answer::file_answer;
use crate::query::parameters;
use crate::signatures::SignedFile;
use crate::state::RestState;

/// The prefix of an output value that names a file.
const REFERENCE: &str = "artifact:";
/// The outputs that name a file of their job. The value of any other output is data, even if it looks like a file name.
const FILES: [&str; 2] = ["report", "endpoint"];

impl RestState {
    /// Replaces the value of each file output with a URL that expires. The value becomes empty if the caller may not read the file. `base`
    /// is the scheme and the address by which the client reached this API.
    pub(crate) async fn address(
        &self,
        caller: &Caller,
        base: &str,
        job: &Value,
        outputs: &mut [NamedValue],
    ) -> Result<(), OpsRefusal> {
        let job_id = text(job, "/metadata/name").unwrap_or_default();
        for output in outputs {
            let Some(file) = file_of(job_id, output) else { continue };
            // The requester of the job may have lost the right to read its results since.
            let has_file = self.artefacts.is_some() && file.is_some();
            let may_read = has_file && self.rights.has(caller, &to_file(job)).await?;
            let mut address = String::new();
            if let Some(file) = file.filter(|_| may_read) {
                match self.signed(base, job_id, file).await {
                    Ok(signed) => address = signed,
                    // Without a URL, the job itself is still readable.
                    Err(why) => tracing::warn!(job = job_id, why, "no address of a file can be signed"),
                }
            }
            output.value = address;
        }
        Ok(())
    }

    /// Returns the URL of a file: a URL of the bucket if files are stored in a bucket, else a URL of this API.
    async fn signed(&self, base: &str, id: &str, file: &str) -> Result<String, String> {
        if let Some(artefacts) = &self.artefacts
            && let Some(signed) = artefacts.signed_url(FileName { job: id, file }, self.url_ttl).await
        {
            return signed.map_err(|failed| failed.to_string());
        }
        let path = self.signatures.path(id, file, self.now().as_second()).await;
        path.map(|path| format!("{base}{path}")).map_err(|refusal| refusal.message)
    }

    /// Returns a file of a job, or the requested part of the file.
    pub(crate) async fn file(
        &self,
        job: &str,
        file: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, OpsRefusal> {
        let given = parameters(request.uri().query(), &["expires", "sig"])?;
        let own = |name: &str| given.get(name).map(String::as_str).unwrap_or_default();
        let signed = SignedFile { job, file, expires: own("expires"), signature: own("sig") };
        self.signatures.check(&signed, self.now().as_second()).await?;
        let gone = || OpsRefusal::new(Code::NotFound, format!("the file {file} of {job} is gone"));
        let is_name = is_file_name(file) && is_file_name(job);
        let folder = self.artefacts.as_ref().filter(|_| is_name).and_then(Artefacts::folder).ok_or_else(gone)?;
        let served = file_answer(&folder.join(job).join(file), request).await;
        let mut response = served.map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                return gone();
            }
            tracing::warn!(error = %error, job, file, "failed to read an artefact");
            OpsRefusal::new(Code::Unreachable, "the folder of artefacts does not answer").after(1)
        })?;
        if response.status() == StatusCode::NOT_FOUND {
            return Err(gone());
        }
        let headers = response.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
        Ok(response)
    }
}

/// Returns the file that an output names, or `None` if the output names no file. The caller's rights were checked for this job only. So a
/// file of another job becomes `Some(None)`, and no caller gets it.
fn file_of<'a>(job_id: &str, output: &'a NamedValue) -> Option<Option<&'a str>> {
    let is_file = FILES.contains(&output.name.as_str());
    let (id, file) = output.value.strip_prefix(REFERENCE).filter(|_| is_file)?.split_once('/')?;
    Some(Some(file).filter(|file| id == job_id && is_file_name(file)))
}

/// Returns the right that a caller needs to read the file of a job.
fn to_file(job: &Value) -> Access {
    if text(job, "/spec/type") == Some(OpsType::Dumplog.word()) {
        return Access::to_logs(text(job, "/spec/targets/0/namespace").unwrap_or_default());
    }
    Access::to_ops_jobs("get", OpsType::Preflight.word())
}

/// Returns true if a name is a plain file name, which cannot lead to another folder.
fn is_file_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= 255 && name.bytes().all(is_plain) && !name.bytes().all(|byte| byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_report_and_an_endpoint_of_the_job_itself_name_a_file() {
        let of = |name: &str, value: &str| {
            let output = NamedValue { name: name.into(), value: value.into() };
            file_of("job-1", &output).map(|file| file.map(str::to_owned))
        };
        for name in FILES {
            assert_eq!(of(name, "artifact:job-1/app-1.log"), Some(Some("app-1.log".to_owned())));
            for other in ["artifact:job-2/app-1.log", "artifact:job-1/../job-2/app-1.log", "artifact:/app-1.log"] {
                assert_eq!(of(name, other), Some(None), "{other}");
            }
            assert_eq!(of(name, "it could not be stored: no room"), None);
        }
        for name in ["target", "message", "digest", "nodes", "Report"] {
            assert_eq!(of(name, "artifact:job-1/app-1.log"), None, "{name}");
        }
    }

    #[test]
    fn a_name_of_a_file_leads_nowhere_else() {
        assert!(is_file_name("report-1a2b.json"));
        for name in ["", ".", "..", "a/b", "../a", "a\0", "%2e%2e", "a b"] {
            assert!(!is_file_name(name), "{name:?}");
        }
    }
}
