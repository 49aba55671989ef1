//! The commands that users type, run by the real kubectl against the in-memory API with a simulated cluster.

#![cfg(test)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use oarlock_sim::world::{Seedbed, Timings, World, WorldOptions};
use oarlock_sim::{Cluster, Options, RealClock};

/// A cluster on a port, and a folder for kubectl's cache. The cluster is served until the process ends.
struct Served {
    address: String,
    home: PathBuf,
    kubectl: PathBuf,
    world: World,
}

impl Served {
    async fn start(name: &str) -> Self {
        let kubectl = tokio::task::spawn_blocking(|| controlplane::binaries(&|line| eprintln!("{line}")));
        let kubectl = kubectl.await.unwrap().unwrap().kubectl;
        let clock = Arc::new(RealClock);
        let cluster = Cluster::new(Options { clock: clock.clone(), ..Options::default() });
        let client = kube::Client::new(cluster.service(), "default");
        let world =
            World::start(client.clone(), WorldOptions { timings: Timings::default(), ..WorldOptions::new(1, clock) });
        let world = world.await.unwrap();
        let seedbed = Seedbed::namespace(client, "default").await.unwrap();
        let web = seedbed.deployment("web", 2).await.unwrap();
        world.settled(&web, std::time::Duration::from_secs(60)).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { cluster.serve(listener).await });
        let home = std::env::temp_dir().join(format!("oarlock-kubectl-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&home).unwrap();
        Self { address, home, kubectl, world }
    }

    /// Runs kubectl with a line of arguments and an input. Returns true if kubectl succeeded, and everything that it printed.
    async fn kubectl_with(&self, line: &str, input: &str) -> (bool, String) {
        let file = self.home.join("input.yaml");
        std::fs::write(&file, input).unwrap();
        let mut command = Command::new(&self.kubectl);
        command.env("HOME", &self.home).env("KUBECONFIG", "").args(["--server", &self.address]).args(line.split(' '));
        command.stdin(std::fs::File::open(&file).unwrap());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
        (output.status.success(), text)
    }

    async fn kubectl(&self, line: &str) -> (bool, String) {
        self.kubectl_with(line, "").await
    }

    async fn end(self) {
        self.world.stop().await;
        std::fs::remove_dir_all(&self.home).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_kind_is_no_match_rather_than_a_missing_document() {
    let served = Served::start("unknown").await;
    let object = "{apiVersion: example.org/v1, kind: Nonsense, metadata: {name: x}}";
    let (done, text) = served.kubectl_with("apply -f -", object).await;
    assert!(!done && text.contains("no matches for kind \"Nonsense\" in version \"example.org/v1\""), "{text}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_explained_from_both_versions_of_the_documents() {
    let served = Served::start("explain").await;
    for form in ["plaintext", "plaintext-openapiv2"] {
        let line = format!("explain --recursive --output={form} deployment.spec.strategy");
        let (done, text) = served.kubectl(&line).await;
        assert!(
            done && text.contains("to replace existing pods") && text.contains("maxUnavailable\t<"),
            "{line}: {text}"
        );
        assert!(!text.contains("<>"), "{line}: {text}");
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_containers_are_answered_with_a_sentence() {
    let served = Served::start("containers").await;
    for line in ["exec deploy/web -- ls", "attach deploy/web", "port-forward deploy/web 8080:80"] {
        let (done, text) = served.kubectl(line).await;
        assert!(!done && text.contains("pods of a cluster in memory have no containers"), "kubectl {line}: {text}");
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_show_what_a_command_would_have_printed() {
    let served = Served::start("logs").await;
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: talker}, spec: {containers: [{name: c, image: busybox, \
               command: [sh, -c, 'echo hello; sleep 600']}]}}";
    let (done, text) = served.kubectl_with("apply -f -", pod).await;
    assert!(done, "{text}");
    let (done, text) = served.kubectl("wait --for=condition=Ready pod/talker --timeout=60s").await;
    assert!(done, "{text}");
    let (done, text) = served.kubectl("logs talker").await;
    assert!(done && text == "hello\n", "{text}");
    let (done, text) = served.kubectl("logs talker --previous").await;
    assert!(!done && text.contains("previous terminated container \"c\" in pod \"talker\" not found"), "{text}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_is_drained_and_what_cannot_run_elsewhere_says_so() {
    let served = Served::start("drain").await;
    let (done, text) = served.kubectl("drain node-0 node-1 --ignore-daemonsets --timeout=60s").await;
    assert!(done, "{text}");
    assert!(served.kubectl("rollout status deploy/web --timeout=60s").await.0);
    let (_, nodes) = served.kubectl("get pods -l app=web -o jsonpath={.items[*].spec.nodeName}").await;
    assert_eq!(nodes, "node-2 node-2");
    assert!(served.kubectl("cordon node-2").await.0);
    assert!(served.kubectl("run lonely --image=none").await.0);
    let waits = served.kubectl("wait --for=condition=PodScheduled=false pod/lonely --timeout=30s").await;
    assert!(waits.0, "{}", waits.1);
    let (_, told) = served.kubectl("describe pod lonely").await;
    assert!(told.contains("0/3 nodes are available: 3 node(s) were unschedulable."), "{told}");
    assert!(served.kubectl("uncordon node-1").await.0);
    let (done, text) = served.kubectl("wait --for=condition=Ready pod/lonely --timeout=60s").await;
    assert!(done, "{text}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deployment_goes_back_to_an_earlier_revision() {
    let served = Served::start("rollout").await;
    let image = "get deploy web -o jsonpath={.spec.template.spec.containers[0].image}";
    let (_, before) = served.kubectl(image).await;
    assert!(served.kubectl("set image deploy/web *=other").await.0);
    assert!(served.kubectl("rollout status deploy/web --timeout=60s").await.0);
    let (_, history) = served.kubectl("rollout history deploy/web").await;
    assert!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");
    let (done, text) = served.kubectl("rollout undo deploy/web").await;
    assert!(done && text.contains("rolled back"), "{text}");
    assert_eq!(served.kubectl(image).await.1, before);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_its_pod_to_the_end() {
    let served = Served::start("job").await;
    let (done, text) = served.kubectl("create job once --image=none").await;
    assert!(done && !text.contains("Warning"), "{text}");
    let (done, text) = served.kubectl("wait --for=condition=Complete job/once --timeout=60s").await;
    assert!(done, "{text}");
    let (_, pods) = served.kubectl("get pods -l job-name=once").await;
    assert!(pods.contains("Completed"), "{pods}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cluster_in_memory_lacks_is_said_in_a_sentence() {
    let served = Served::start("lacks").await;
    for line in ["create priorityclass q --value=1", "create ingress i --rule=a/b=c:80"] {
        let (done, text) = served.kubectl(line).await;
        assert!(!done && text.contains("a cluster in memory does not serve"), "kubectl {line}: {text}");
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_gets_a_token() {
    let served = Served::start("token").await;
    let (done, text) = served.kubectl("create token robot").await;
    assert!(!done && text.contains("serviceaccounts \"robot\" not found"), "{text}");
    assert!(served.kubectl("create serviceaccount robot").await.0);
    let (done, token) = served.kubectl("create token robot --audience oarlock --duration 10m").await;
    assert!(done && token.trim().split('.').count() == 3, "{token}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_for_people_have_what_other_roles_add_to_them() {
    let served = Served::start("people").await;
    assert!(served.kubectl("create rolebinding ann --clusterrole=edit --user=ann").await.0);
    for (line, allowed) in [
        ("auth can-i list pods --as ann", true),
        ("auth can-i create pods/eviction --as ann", true),
        ("auth can-i create serviceaccounts/token --as ann", true),
        ("auth can-i create tokenreviews --as ann", false),
        ("auth can-i list pods -n kube-system --as ann", false),
        ("auth can-i create roles --as ann", false),
        ("auth can-i list collasets --as ann", false),
    ] {
        assert_eq!(served.kubectl(line).await.0, allowed, "kubectl {line}");
    }
    let (done, text) = served.kubectl("delete configmap x --as ann").await;
    assert!(!done && text.contains("NotFound"), "{text}");
    let (done, text) = served.kubectl("delete node node-0 --as ann").await;
    assert!(!done && text.contains("User \"ann\" cannot delete resource \"nodes\""), "{text}");
    assert!(served.kubectl("create clusterrole sets --verb=list --resource=collasets.apps.kusionstack.io").await.0);
    assert!(served.kubectl("label clusterrole sets rbac.authorization.k8s.io/aggregate-to-view=true").await.0);
    assert!(served.kubectl("auth can-i list collasets --as ann").await.0);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_do_what_is_answered_for_oneself_and_for_others() {
    let served = Served::start("who").await;
    assert_eq!(served.kubectl("auth can-i delete pods").await, (true, "yes\n".to_owned()));
    assert_eq!(served.kubectl("auth can-i delete pods --as bob").await, (false, "no\n".to_owned()));
    let (done, text) = served.kubectl("auth whoami").await;
    assert!(done && text.contains("kubernetes-admin"), "{text}");
    let (done, text) = served.kubectl("auth can-i --list --as bob").await;
    assert!(done && text.contains("selfsubjectaccessreviews.authorization.k8s.io"), "{text}");
    served.end().await;
}
