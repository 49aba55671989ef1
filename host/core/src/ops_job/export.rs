//! The image that an OpsJob exports, and its name in the registry. Source: docs/opsjob.md 12.
//!
//! Takes a pod and the requested export; yields the source and the target of the copy. May not contact a registry.

use k8s_openapi::jiff::Timestamp;
use oci_spec::distribution::Reference;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::object::bound::cut;
use crate::object::bound::shown;
use crate::object::fields::{at, flag, list, text};
use crate::object::key::is_object_name;
use crate::object::time::read_time;
use crate::ops_job::running_image::RunningImage;
use crate::ops_job::stored::resolved;
use crate::plugin::task::{COMMITS, EXPORTS, PLUGIN_COPIES, is_digest};
use crate::requests::scripts::sha256;

/// The mode that exports a container as it is instead of its image.
const COMMIT: &str = "commit";
/// The registry of an image name without a registry.
const DOCKER: &str = "docker.io";
/// The most bytes of an image's name in a registry.
const MOST_NAME: usize = 255;
/// The most containers and pull secrets of a pod that the host reads.
const MOST: usize = 64;
/// The most characters of an image's name in a pod. A pod may have longer names, but no runtime pulls them.
const MOST_IMAGE: usize = 512;

/// The image of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerImage {
    /// Name of the container.
    pub container: String,
    /// Image of the container, as the pod names it.
    pub image: String,
    /// The image that the container runs.
    pub runs: RunningImage,
    /// True if the container runs.
    pub running: bool,
    /// True if the container's command line has the value of a Secret.
    pub shows_secret: bool,
}

/// The images of a pod and its pull secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodImages {
    /// The images of the containers, in their order.
    pub containers: Vec<ContainerImage>,
    /// The names of pull secrets in the namespace of the pod.
    pub secrets: Vec<String>,
}

impl PodImages {
    /// Returns true if the pod has no images and no pull secrets, as far as the host has read it.
    pub const fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.secrets.is_empty()
    }

    /// Reads the images of a stored pod.
    pub fn read(pod: &Value) -> Self {
        let statuses = list(pod, "/status/containerStatuses");
        let containers = list(pod, "/spec/containers").iter().take(MOST).filter_map(|one| {
            let (container, image) = (text(one, "/name")?.to_owned(), cut(text(one, "/image")?, MOST_IMAGE));
            let status = statuses.iter().find(|status| text(status, "/name") == Some(&container));
            let runs = status.and_then(|status| text(status, "/imageID")).filter(|id| id.len() <= MOST_IMAGE);
            let runs = runs.map(RunningImage::read).unwrap_or_default();
            let running = status.is_some_and(|status| status.pointer("/state/running").is_some());
            Some(ContainerImage { container, image, runs, running, shows_secret: shows_secret(one) })
        });
        let secrets = list(pod, "/spec/imagePullSecrets").iter().take(MOST);
        let secrets =
            secrets.filter_map(|one| text(one, "/name").filter(|name| is_object_name(name)).map(str::to_owned));
        Self { containers: containers.collect(), secrets: secrets.collect() }
    }

    /// Returns the container with this name, or the first container, and its image.
    fn asked(&self, name: Option<&str>) -> Result<(&ContainerImage, Image), String> {
        let is_asked = |one: &&ContainerImage| name.is_none_or(|name| one.container == name);
        let Some(found) = self.containers.iter().find(is_asked) else {
            let names: Vec<&str> = self.containers.iter().map(|one| one.container.as_str()).collect();
            let asked = name.map_or_else(String::new, |name| format!(" {}", shown(name, 64)));
            return Err(format!("has no container{asked}: it has {}", names.join(", ")));
        };
        let image = &found.image;
        let read = Image::read(image).map_err(|why| format!("runs {}, which is no image: {why}", shown(image, 256)))?;
        Ok((found, read))
    }
}

/// Returns true if the kubelet puts the value of a Secret into the container's command line, in place of `$(NAME)`.
fn shows_secret(container: &Value) -> bool {
    let variables = list(container, "/env").iter().filter(|one| at(one, "/valueFrom/secretKeyRef").is_some());
    let mut signs: Vec<String> = variables.filter_map(|one| Some(format!("$({})", text(one, "/name")?))).collect();
    if list(container, "/envFrom").iter().any(|one| at(one, "/secretRef").is_some()) {
        signs.push("$(".to_owned());
    }
    let words = ["/command", "/args"].into_iter().flat_map(|field| list(container, field)).filter_map(Value::as_str);
    words.into_iter().any(|word| signs.iter().any(|sign| word.contains(sign)))
}

/// An image to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedImage {
    /// The container that runs the image.
    pub container: String,
    /// The image, as the pod names it.
    pub image: String,
    /// The part of the container to export.
    pub export: Export,
}

/// The part of a container to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Export {
    /// The image of the container.
    Copy {
        /// The running image, with its registry and digest. If the digest is unknown, the tag takes its place.
        source: String,
        /// The pull secrets that the host may use.
        secrets: Vec<String>,
        /// The digest by which only the container runtime knows the image. The host copies the tag only while it refers to that image.
        runs: Option<String>,
        /// True if the host copies only the platforms that the registry has.
        available: bool,
    },
    /// The file system of the container as it is.
    Commit,
}

impl ExportedImage {
    /// Returns the image of this container, or of the pod's first container. The host uses the pull secrets for which `may_use` returns true.
    ///
    /// # Errors
    /// If the image cannot be exported. The sentence continues the name of the pod.
    pub fn of(pod: &PodImages, container: Option<&str>, may_use: impl Fn(&str) -> bool) -> Result<Self, String> {
        let (ContainerImage { container, image, runs, .. }, read) = pod.asked(container)?;
        let (place, tag) = (format!("{}/{}", read.registry, read.name), read.tag);
        let (source, runs) = match (runs, read.digest) {
            (RunningImage::Pulled(digest), _) => (format!("{place}@{digest}"), None),
            (_, Some(digest)) => (format!("{place}@{digest}"), None),
            (RunningImage::Local(runs), None) => (format!("{place}:{tag}"), Some(runs.clone())),
            (RunningImage::Unknown, None) => (format!("{place}:{tag}"), None),
        };
        let secrets = pod.secrets.iter().filter(|name| may_use(name)).cloned().collect();
        Ok(Self {
            container: container.clone(),
            image: image.clone(),
            export: Export::Copy { source, secrets, runs, available: false },
        })
    }

    /// Sets whether the host copies only the platforms that exist.
    #[must_use]
    pub fn if_available(mut self, asked: bool) -> Self {
        if let Export::Copy { available, .. } = &mut self.export {
            *available = asked;
        }
        self
    }

    /// Returns the file system of this container, or of the pod's first container.
    ///
    /// # Errors
    /// If the container cannot be exported. The sentence continues the name of the pod.
    pub fn committed(pod: &PodImages, container: Option<&str>) -> Result<Self, String> {
        let (ContainerImage { container, image, running, shows_secret, .. }, _) = pod.asked(container)?;
        if !running {
            return Err(format!("does not run its container {container}, so it cannot be committed: take mode copy"));
        }
        if *shows_secret {
            // The runtime keeps the command line in the history of the committed image.
            return Err(format!(
                "has the value of a Secret in the command line of its container {container}, which would be in the image: take mode copy"
            ));
        }
        Ok(Self { container: container.clone(), image: image.clone(), export: Export::Commit })
    }

    /// Returns the export in the form of the job's status.
    pub(super) fn status(&self) -> Value {
        match &self.export {
            Export::Copy { source, secrets, runs, available } => {
                let status = json!({"container": self.container, "source": source, "pullSecrets": secrets});
                let status = with(status, "runs", runs.as_ref().map(|runs| json!(runs)));
                with(status, "available", available.then_some(json!(true)))
            }
            Export::Commit => json!({"container": self.container, "mode": COMMIT}),
        }
    }

    /// Returns the inputs that the host adds.
    pub(super) fn added_inputs(&self) -> Value {
        json!([{"name": "image", "value": self.image}])
    }

    /// Reads the export from the status of a job.
    pub(super) fn read(status: &Map<String, Value>) -> Option<Self> {
        let stored = status.get("export")?;
        let image = status.get("addedInputs")?.pointer("/0/value").and_then(Value::as_str)?;
        let secrets = list(stored, "/pullSecrets").iter().filter_map(|name| name.as_str().map(str::to_owned));
        let export = match text(stored, "/mode") {
            Some(COMMIT) => Export::Commit,
            _ => Export::Copy {
                source: text(stored, "/source")?.to_owned(),
                secrets: secrets.collect(),
                runs: text(stored, "/runs").map(str::to_owned),
                available: flag(stored, "/available"),
            },
        };
        Some(Self { container: text(stored, "/container")?.to_owned(), image: image.to_owned(), export })
    }

    /// Returns the registry name for the export of a job with this creation time and UID, from a pod of this namespace.
    fn name(&self, created: Timestamp, uid: &str, namespace: &str) -> Result<ExportName, String> {
        match self.export {
            Export::Copy { .. } => ExportName::of(EXPORTS, &self.image, created),
            Export::Commit => {
                let ExportName { name, tag: _, otherwise } =
                    ExportName::of(&format!("{COMMITS}{namespace}/"), &self.image, created)?;
                // Two containers of one image may have written different files.
                let digits = sha256(uid);
                let tag = format!("{otherwise}-{}", digits.get(..8).unwrap_or_default());
                Ok(ExportName { name, otherwise: tag.clone(), tag })
            }
        }
    }

    /// Returns the names with tags that the image may have in the registry. A commit has one such name, a copy has two.
    pub(super) fn names(&self, created: Timestamp, uid: &str, namespace: &str) -> Result<Vec<String>, String> {
        let ExportName { name, tag, otherwise } = self.name(created, uid, namespace)?;
        let tags = if tag == otherwise { vec![tag] } else { vec![tag, otherwise] };
        Ok(tags.into_iter().map(|tag| format!("{name}:{tag}")).collect())
    }

    /// Returns the parameters of the job's OperationJob, for a job created at `created` and a pod in `namespace`. A copy has no parameters. The host
    /// reads the copy from the status of the job ([`ExportOrder`]), so a plugin cannot change it.
    ///
    /// # Errors
    /// If the export has no valid name.
    pub(super) fn parameters(
        &self,
        created: Timestamp,
        uid: &str,
        namespace: &str,
    ) -> Result<Map<String, Value>, String> {
        let ExportName { name, tag, .. } = self.name(created, uid, namespace)?;
        let parameters = match &self.export {
            Export::Copy { .. } => json!({}),
            Export::Commit => json!({"mode": COMMIT, "container": self.container, "target": format!("{name}:{tag}")}),
        };
        Ok(parameters.as_object().cloned().unwrap_or_default())
    }
}

/// Returns the object with one more field, if the value is present.
fn with(mut object: Value, field: &str, value: Option<Value>) -> Value {
    if let (Some(all), Some(value)) = (object.as_object_mut(), value) {
        all.insert(field.to_owned(), value);
    }
    object
}

/// The task with which a plugin asks the host to copy the image of an OpsJob.
#[derive(Clone, Copy, Debug)]
pub struct ExportTask<'a> {
    /// UID of the OperationJob.
    pub job: &'a str,
    /// Namespace and UID of the target pod.
    pub pod: (&'a str, &'a str),
}

/// The copy that the host makes for an OpsJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOrder {
    /// The running image, with its registry and its digest or tag.
    pub source: String,
    /// Names of pull secrets in the namespace of the pod. The pod names them, and the job's author may read them.
    pub secrets: Vec<String>,
    /// Name and tag in the registry to which the host exports.
    pub target: String,
    /// The tag that the copy gets if the first tag belongs to another image.
    pub otherwise: String,
    /// The digest by which a runtime knows the image. The host does not copy the image if the registry now has another digest.
    pub runs: Option<String>,
    /// True if the host copies the rest of an index whose parts do not all exist.
    pub available: bool,
}

impl ExportOrder {
    /// Reads the copy for this task from a stored OpsJob. Only the host writes the status of an OpsJob.
    ///
    /// # Errors
    /// If the task does not belong to this OpsJob, or the OpsJob copies no image.
    pub fn read(document: &Value, task: &ExportTask<'_>) -> Result<Self, String> {
        let own = |at: &str| text(document, at);
        let (namespace, uid) = task.pod;
        let recorded = own("/metadata/uid").filter(|_| own("/status/operationJob/uid") == Some(task.job));
        let Some(ops_job) = recorded else {
            return Err("its OperationJob is not the one that the status of the OpsJob of its name records".to_owned());
        };
        let targets = resolved(document).filter(|resolved| resolved.namespace.as_deref() == Some(namespace));
        if !targets.is_some_and(|resolved| resolved.targets.iter().any(|(_, target)| target == uid)) {
            return Err("the pod is no target of the OpsJob".to_owned());
        }
        let status = document.pointer("/status").and_then(Value::as_object);
        let exported = status.and_then(ExportedImage::read).zip(read_time(own("/metadata/creationTimestamp")));
        match exported {
            Some((exported @ ExportedImage { export: Export::Copy { .. }, .. }, created)) => {
                let ExportName { name, tag, otherwise } = exported.name(created, ops_job, namespace)?;
                let Export::Copy { source, secrets, runs, available } = exported.export else {
                    return Err(NO_COPY.to_owned());
                };
                Ok(Self { source, secrets, target: format!("{name}:{tag}"), otherwise, runs, available })
            }
            _ => Err(NO_COPY.to_owned()),
        }
    }
}

/// The error for an OpsJob that exports no image, or that exports a container instead.
const NO_COPY: &str = "the status of the OpsJob names no image to copy";

/// The name of an exported image in the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportName {
    /// The name, such as `custom/library/busybox`.
    pub name: String,
    /// The tag, such as `20251113`.
    pub tag: String,
    /// The second tag, in case the first tag belongs to another image.
    pub otherwise: String,
}

impl ExportName {
    /// Returns the name of an image in this folder, for a job with this creation time.
    ///
    /// # Errors
    /// If the image is not a valid reference, or its name would be too long or reserved.
    pub fn of(folder: &str, image: &str, created: Timestamp) -> Result<Self, String> {
        let Image { registry, name, .. } = Image::read(image)?;
        let registry = if registry == DOCKER { String::new() } else { format!("{}/", registry.replace(':', "-")) };
        let bytes = folder.len() + registry.len() + name.len();
        if bytes > MOST_NAME {
            return Err(format!("its name in the registry would have {bytes} bytes, and may have {MOST_NAME}"));
        }
        // A name below one of these folders says who chose the image. So no other image may get such a name.
        let whole = format!("{folder}{registry}{name}");
        if let Some(taken) =
            [COMMITS, PLUGIN_COPIES].into_iter().find(|taken| folder == EXPORTS && whole.starts_with(taken))
        {
            return Err(format!("its name in the registry would be below {taken}, which is kept for other images"));
        }
        let (date, time) = (created.strftime("%Y%m%d").to_string(), created.strftime("%H%M%S"));
        Ok(Self { name: format!("{folder}{registry}{name}"), otherwise: format!("{date}-{time}"), tag: date })
    }
}

/// An image reference, completed by Docker's defaults.
struct Image {
    registry: String,
    name: String,
    tag: String,
    digest: Option<String>,
}

impl Image {
    fn read(image: &str) -> Result<Self, String> {
        // Registries use lower-case names, but pods may use upper case. Tags keep their case.
        let (rest, digest) = image.split_once('@').map_or((image, None), |(rest, digest)| (rest, Some(digest)));
        let place = rest.rfind('/').unwrap_or(0);
        let tagged = rest.rfind(':').filter(|colon| *colon > place).unwrap_or(rest.len());
        let (name, tag) = rest.split_at(tagged);
        let digest = digest.map_or_else(String::new, |digest| format!("@{digest}"));
        let whole = format!("{}{tag}{digest}", name.to_ascii_lowercase());
        let read: Reference = whole.parse().map_err(|error| format!("{error}"))?;
        Ok(Self {
            registry: read.registry().to_owned(),
            name: read.repository().to_owned(),
            tag: read.tag().unwrap_or("latest").to_owned(),
            digest: read.digest().filter(|digest| is_digest(digest)).map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(image: &str) -> String {
        let ExportName { name, tag, .. } =
            ExportName::of(EXPORTS, image, "2025-11-13T23:05:09Z".parse().unwrap()).unwrap();
        format!("{name}:{tag}")
    }

    #[test]
    fn an_exported_image_has_the_name_of_what_it_came_from_and_the_day() {
        for (image, target) in [
            ("busybox:latest", "custom/library/busybox:20251113"),
            ("docker.io/library/busybox:latest", "custom/library/busybox:20251113"),
            ("Busybox", "custom/library/busybox:20251113"),
            ("team/app@sha256:1", ""),
            ("ghcr.io/Team/App:V1", "custom/ghcr.io/team/app:20251113"),
            ("localhost/app", "custom/localhost/app:20251113"),
        ] {
            if target.is_empty() {
                assert!(ExportName::of(EXPORTS, image, Timestamp::UNIX_EPOCH).is_err());
            } else {
                assert_eq!(name(image), target, "{image}");
            }
        }
        let digest = "a".repeat(64);
        assert_eq!(name(&format!("Reg:5000/A/B/c@sha256:{digest}")), "custom/reg-5000/a/b/c:20251113");
        let otherwise = ExportName::of(EXPORTS, "a", "2025-11-13T23:05:09Z".parse().unwrap()).unwrap().otherwise;
        assert_eq!(otherwise, "20251113-230509");
    }

    fn images(containers: Value, statuses: Value) -> PodImages {
        PodImages::read(
            &json!({"spec": {"containers": containers, "imagePullSecrets": [{"name": "mine"}, {"name": "theirs"}]},
            "status": {"containerStatuses": statuses}}),
        )
    }

    #[test]
    fn names_of_images_and_secrets_are_bounded_and_counted() {
        let containers = json!([{"name": "c", "image": "i".repeat(1_000_000)}]);
        let statuses = json!([{"name": "c", "imageID": "d".repeat(1_000_000)}]);
        let found = images(containers, statuses);
        assert!(found.containers[0].image.chars().count() <= MOST_IMAGE);
        let bytes = json!(found).to_string().len();
        assert!((MOST_IMAGE..MOST_IMAGE + 320).contains(&bytes), "{bytes}");
        let pod = json!({"spec": {"imagePullSecrets": [{"name": "s".repeat(1_000_000)}, {"name": "own"}]}});
        assert_eq!(PodImages::read(&pod).secrets, ["own"]);
    }

    #[test]
    fn what_runs_is_copied_whatever_its_tag_says_now() {
        let digest = format!("sha256:{}", "b".repeat(64));
        let ran = images(
            json!([{"name": "app", "image": "reg:5000/a:1.0"}, {"name": "side", "image": "b"}]),
            json!([{"name": "side", "imageID": "sha256:local"}, {"name": "app", "imageID": format!("reg:5000/a@{digest}")}]),
        );
        let first = ExportedImage::of(&ran, None, |name| name == "mine").unwrap();
        assert_eq!((first.container.as_str(), first.image.as_str()), ("app", "reg:5000/a:1.0"));
        let copy = |source: &str, secrets: &[&str]| Export::Copy {
            source: source.to_owned(),
            secrets: secrets.iter().map(|name| (*name).to_owned()).collect(),
            runs: None,
            available: false,
        };
        assert_eq!(first.export, copy(&format!("reg:5000/a@{digest}"), &["mine"]));
        let side = ExportedImage::of(&ran, Some("side"), |_| false).unwrap();
        assert_eq!(side.export, copy("docker.io/library/b:latest", &[]));
        assert_eq!(
            ExportedImage::of(&ran, Some("none"), |_| true).unwrap_err(),
            "has no container none: it has app, side"
        );
    }

    #[test]
    fn a_tag_counts_only_while_it_refers_to_what_the_runtime_says() {
        let own = format!("sha256:{}", "b".repeat(64));
        let source = |image: &str, id: &str| {
            let ran = images(json!([{"name": "app", "image": image}]), json!([{"name": "app", "imageID": id}]));
            let exported = ExportedImage::of(&ran, None, |_| true).unwrap();
            let Export::Copy { source, runs, .. } = exported.export else { panic!("a copy was asked for") };
            (source, runs.unwrap_or_default())
        };
        let (by_tag, asked) = ("reg:5000/a:1", format!("sha256:{}", "c".repeat(64)));
        let tag = "reg:5000/a:1".to_owned();
        assert_eq!(source(by_tag, &format!("reg:5000/other@{own}")), (format!("reg:5000/a@{own}"), String::new()));
        assert_eq!(source(by_tag, &own), (tag.clone(), own.clone()));
        assert_eq!(source(by_tag, &format!("docker://{own}")), (tag.clone(), own.clone()));
        assert_eq!(source(by_tag, "sha256:local"), (tag, String::new()));
        let pinned = format!("reg:5000/a@{asked}");
        assert_eq!(source(&pinned, &own), (pinned.clone(), String::new()));
        assert_eq!(source(&pinned, &format!("a@{own}")), (format!("reg:5000/a@{own}"), String::new()));
    }

    #[test]
    fn a_container_is_committed_while_it_runs() {
        let running = json!([{"name": "app", "state": {"running": {}}}, {"name": "side", "state": {"waiting": {}}}]);
        let ran = images(json!([{"name": "app", "image": "a"}, {"name": "side", "image": "b"}]), running);
        let app = ExportedImage::committed(&ran, None).unwrap();
        let target = |uid: &str| {
            let parameters = app.parameters("2025-11-13T23:05:09Z".parse().unwrap(), uid, "team").unwrap();
            assert_eq!((&parameters["mode"], &parameters["container"]), (&json!("commit"), &json!("app")));
            parameters["target"].as_str().unwrap().to_owned()
        };
        assert_eq!(target("u"), "custom/commits/team/library/a:20251113-230509-0bfe935e");
        assert_ne!(target("v"), target("u"), "of two jobs of one second each has a tag");
        let refused = ExportedImage::committed(&ran, Some("side")).unwrap_err();
        assert!(refused.contains("does not run its container side"), "{refused}");
    }

    #[test]
    fn a_container_with_a_secret_in_its_command_line_is_not_committed() {
        let secret = json!({"secretKeyRef": {"name": "s", "key": "k"}});
        for (more, is_refused) in [
            (json!({"args": ["--password=$(WORD)"], "env": [{"name": "WORD", "valueFrom": secret}]}), true),
            (json!({"command": ["a", "$(ANY)"], "envFrom": [{"secretRef": {"name": "s"}}]}), true),
            (json!({"args": ["$(date)"], "env": [{"name": "WORD", "valueFrom": secret}]}), false),
            (json!({"args": ["$(WORD)"], "env": [{"name": "WORD", "value": "plain"}]}), false),
        ] {
            let mut container = json!({"name": "app", "image": "a"});
            container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let ran = images(json!([container]), json!([{"name": "app", "state": {"running": {}}}]));
            let committed = ExportedImage::committed(&ran, None);
            assert_eq!(committed.is_err_and(|why| why.contains("value of a Secret")), is_refused, "{more}");
            assert!(ExportedImage::of(&ran, None, |_| true).is_ok());
        }
    }

    /// Returns a stored OpsJob that exports the image of the pod `pod` in `team`.
    fn ops_job(exported: &ExportedImage) -> Value {
        json!({"metadata": {"name": "j", "uid": "ops", "creationTimestamp": "2025-11-13T23:05:09Z"},
            "spec": {"type": "exportimage", "targets": [{"name": "web", "namespace": "team", "uid": "pod"}]},
            "status": {"export": exported.status(), "addedInputs": exported.added_inputs(),
                "operationJob": {"name": "j", "uid": "child"}}})
    }

    const TASK: ExportTask<'_> = ExportTask { job: "child", pod: ("team", "pod") };

    #[test]
    fn what_is_copied_the_status_of_its_ops_job_says_and_no_plugin() {
        let ran = images(
            json!([{"name": "app", "image": "reg:5000/a:1.0"}]),
            json!([{"name": "app", "state": {"running": {}}}]),
        );
        let exported = ExportedImage::of(&ran, None, |name| name == "mine").unwrap();
        let created = "2025-11-13T23:05:09Z".parse().unwrap();
        assert_eq!(exported.parameters(created, "ops", "team"), Ok(Map::new()), "its plugin is told nothing");
        let order = ExportOrder::read(&ops_job(&exported), &TASK).unwrap();
        let [source, target, otherwise] =
            ["reg:5000/a:1.0", "custom/reg-5000/a:20251113", "20251113-230509"].map(str::to_owned);
        let (runs, available, secrets) = (order.runs.clone(), false, vec!["mine".to_owned()]);
        assert_eq!(order, ExportOrder { source, secrets, target, otherwise, runs, available });
        let names = exported.names(created, "ops", "team").unwrap();
        assert_eq!(names, ["custom/reg-5000/a:20251113", "custom/reg-5000/a:20251113-230509"]);
    }

    #[test]
    fn an_operation_job_that_its_ops_job_does_not_record_has_nothing_copied() {
        let ran = images(json!([{"name": "app", "image": "a"}]), json!([{"name": "app", "state": {"running": {}}}]));
        let job = ops_job(&ExportedImage::of(&ran, None, |_| true).unwrap());
        for task in [
            ExportTask { job: "forged", ..TASK },
            ExportTask { pod: ("team", "another"), ..TASK },
            ExportTask { pod: ("other", "pod"), ..TASK },
        ] {
            assert!(ExportOrder::read(&job, &task).is_err(), "{task:?}");
        }
        let committed = ops_job(&ExportedImage::committed(&ran, None).unwrap());
        assert_eq!(ExportOrder::read(&committed, &TASK), Err(NO_COPY.to_owned()));
        let mut begun = job;
        begun["status"].as_object_mut().unwrap().remove("operationJob");
        assert!(ExportOrder::read(&begun, &TASK).is_err(), "it is not recorded");
    }

    #[test]
    fn an_image_whose_name_would_be_in_the_folder_of_others_is_not_copied() {
        for image in ["commits/team/a:1", "plugins/mine/team/a:1", "docker.io/plugins/a"] {
            let refused = ExportName::of(EXPORTS, image, Timestamp::UNIX_EPOCH).unwrap_err();
            assert!(refused.contains("kept for other images"), "{image}: {refused}");
        }
        assert!(ExportName::of(EXPORTS, "ghcr.io/plugins/a:1", Timestamp::UNIX_EPOCH).is_ok());
        assert!(ExportName::of("custom/commits/team/", "plugins/a", Timestamp::UNIX_EPOCH).is_ok());
    }

    #[test]
    fn what_is_exported_is_read_from_a_status_as_it_was_written() {
        let ran = images(json!([{"name": "app", "image": "a"}]), json!([{"name": "app", "state": {"running": {}}}]));
        let id = json!([{"name": "app", "imageID": "b".repeat(64)}]);
        let local = images(json!([{"name": "app", "image": "a"}]), id);
        let all = [(&ran, false), (&ran, true), (&local, false)].map(|(ran, commits)| match commits {
            true => ExportedImage::committed(ran, None),
            false => ExportedImage::of(ran, None, |_| true).map(|exported| exported.if_available(true)),
        });
        for exported in all.map(Result::unwrap) {
            let mut status = Map::new();
            status.insert("export".to_owned(), exported.status());
            status.insert("addedInputs".to_owned(), exported.added_inputs());
            assert_eq!(ExportedImage::read(&status), Some(exported));
        }
    }
}
