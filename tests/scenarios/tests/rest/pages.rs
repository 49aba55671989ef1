//! The pages for browsers: logins, rights, and live changes.

use anyhow::{Context as _, ensure};
use http::Method;
use http_body_util::BodyExt as _;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind};
use kube::client::Body;
use oarlock_scenarios::test_cluster::patiently;
use oarlock_support::install;
use serde_json::{Value, json};

use super::served::{Answer, Sent, Served};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
/// A name with HTML. The API server accepts it as a value, but not as the name of an object.
const HOSTILE: &str = "<script>alert(1)</script>\u{202e}&\"'";

/// A browser with one cookie.
struct Browser<'a> {
    served: &'a Served,
    cookie: String,
}

impl<'a> Browser<'a> {
    fn new(served: &'a Served) -> Self {
        Self { served, cookie: String::new() }
    }

    /// Returns a browser that is logged in with a token.
    async fn of(served: &'a Served, token: &str) -> anyhow::Result<Self> {
        let mut browser = Self::new(served);
        let answer = browser.log_in(token, "/ui/").await?;
        ensure!(answer.status == 303 && location(&answer) == "/ui/", "{answer:?}");
        Ok(browser)
    }

    async fn log_in(&mut self, token: &str, next: &str) -> anyhow::Result<Answer> {
        let form = format!("token={token}&next={}", next.replace('/', "%2F"));
        let origin = format!("http://{}", self.served.address());
        let sent = Sent { body: form.into_bytes(), headers: &[FORM, ("origin", &origin)] };
        let answer = self.served.send(None, Method::POST, "/ui/login", sent).await?;
        let set = answer.headers.get("set-cookie").and_then(|value| value.to_str().ok());
        if let Some(pair) = set.and_then(|value| value.split(';').next()) {
            pair.clone_into(&mut self.cookie);
        }
        Ok(answer)
    }

    async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        let headers = [("cookie", self.cookie.as_str())];
        self.served.send(None, Method::GET, path, Sent { body: Vec::new(), headers: &headers }).await
    }

    /// Returns the HTML of a page.
    async fn page(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.get(path).await?;
        ensure!(answer.status == 200, "{path}: {} {}", answer.status, html(&answer));
        Ok(html(&answer))
    }

    /// Opens the stream of a page.
    async fn stream(&self, path: &str) -> anyhow::Result<EventReader> {
        // Also the page of an object that does not exist is live.
        let page = html(&self.get(path).await?);
        let version = page.split("data-at=\"").nth(1).and_then(|rest| rest.split('"').next()).context("no version")?;
        let of = path.replace('&', "%26").replace('?', "%3F");
        let answer =
            self.served.begin(&format!("/ui/stream?of={of}&at={version}"), &[("cookie", self.cookie.as_str())]).await?;
        ensure!(answer.status() == 200 && answer.headers()["content-type"] == "text/event-stream", "{answer:?}");
        Ok(EventReader { body: answer.into_body(), text: String::new() })
    }
}

/// The events of a stream.
struct EventReader {
    body: Body,
    text: String,
}

impl EventReader {
    /// Waits for an event with this name and these words. Returns its data.
    async fn until(&mut self, name: &str, words: &str) -> anyhow::Result<String> {
        let wait = async {
            loop {
                while let Some((event, rest)) = self.text.split_once("\n\n") {
                    let found = event.strip_prefix(&format!("event: {name}\ndata: ")).map(str::to_owned);
                    let rest = rest.to_owned();
                    self.text = rest;
                    if let Some(data) = found.filter(|data| data.contains(words)) {
                        return Ok(data);
                    }
                }
                let frame = self.body.frame().await.context("the stream has ended")?.map_err(anyhow::Error::from)?;
                if let Some(bytes) = frame.data_ref() {
                    self.text.push_str(&String::from_utf8_lossy(bytes));
                }
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(60), wait).await;
        waited.with_context(|| format!("no event {name} with {words}"))?
    }
}

fn html(answer: &Answer) -> String {
    answer.body.as_str().unwrap_or_default().to_owned()
}

fn location(answer: &Answer) -> &str {
    answer.headers.get("location").and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn job(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"action": HOSTILE, "targets": [{"name": "nobody"}]}})
}

fn operation_jobs(served: &Served, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "OperationJob");
    Api::namespaced_with(served.admin.clone(), namespace, &ApiResource::from_gvk(&kind))
}

/// Returns a JobFlow whose only step fails after 500 lines and a line that is HTML and has a control character.
fn failing_flow(namespace: &str) -> Value {
    let script = "seq -f 'line %g' 500; echo '<script>\u{1b}[31m'; sleep 1; exit 3";
    let container = json!({"name": "c", "image": "busybox", "command": ["sh", "-c", script]});
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    let step = json!({"name": "build", "jobTemplate": {"backoffLimit": 0, "template": template}});
    json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "metadata": {"name": "flow", "namespace": namespace},
        "spec": {"flows": [step]}})
}

/// Returns the address of the log that a page offers.
fn log_address(page: &str) -> Option<String> {
    let rest = page.split("data-log=\"").nth(1)?;
    Some(rest.split('"').next()?.replace("&amp;", "&"))
}

/// Starts a host and a server with pages.
async fn served() -> anyhow::Result<Served> {
    served_with(&["--web"]).await
}

/// Starts a host and a server with these arguments.
async fn served_with(more: &[&str]) -> anyhow::Result<Served> {
    let mut served = Served::in_memory(&[]).await?;
    served.answer_by_server(more).await?;
    let ready = patiently("the server is ready", async || {
        Ok(served.ask(None, Method::GET, "/readyz", None).await?.status == 200)
    });
    ready.await?;
    Ok(served)
}

/// Makes a namespace.
async fn namespace(served: &Served, name: &str) -> anyhow::Result<()> {
    let document = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    install::apply(&served.admin, &document).await.map(drop)
}

/// Lets an account do this with OperationJobs in a namespace. Returns the name of the RoleBinding.
async fn allow_in(served: &Served, namespace: &str, account: &str) -> anyhow::Result<String> {
    let name = format!("{account}-sees");
    let rules =
        json!([{"apiGroups": ["apps.kusionstack.io"], "resources": ["operationjobs"], "verbs": ["get", "list"]}]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": name, "namespace": namespace}, "rules": rules});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": super::served::PEOPLE}]});
    install::apply(&served.admin, &role).await?;
    install::apply(&served.admin, &binding).await?;
    Ok(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_logs_in_with_a_token_and_its_cookie_counts_for_pages_alone() -> anyhow::Result<()> {
    let served = served().await?;
    let mut browser = Browser::new(&served);
    let answer = browser.get("/ui/?kind=jf").await?;
    ensure!(answer.status == 303 && location(&answer) == "/ui/login?next=%2Fui%2F%3Fkind%3Djf", "{answer:?}");
    ensure!(html(&browser.get("/ui/login").await?).contains("kubectl create token"), "the form says how");
    for token in ["", "x", "a.b.c", &served.token_for("admin", "elsewhere").await?] {
        let answer = browser.log_in(token, "/ui/").await?;
        ensure!(answer.status == 401 && answer.headers.get("set-cookie").is_none(), "{answer:?}");
    }
    let token = served.token("admin").await?;
    let origin = "http://evil.example";
    let body = format!("token={token}&next=%2Fui%2F").into_bytes();
    let forged =
        served.send(None, Method::POST, "/ui/login", Sent { body, headers: &[FORM, ("origin", origin)] }).await?;
    ensure!(forged.status == 403 && forged.headers.get("set-cookie").is_none(), "{forged:?}");

    let answer = browser.log_in(&token, "https://evil.example/").await?;
    ensure!(answer.status == 303 && location(&answer) == "/ui/", "{answer:?}");
    let cookie = answer.headers["set-cookie"].to_str()?.to_owned();
    for part in ["__Host-oarlock=", "; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict", "; Max-Age="] {
        ensure!(cookie.contains(part), "{part}: {cookie}");
    }
    ensure!(!cookie.contains(&token) && cookie.len() <= 3_584, "{cookie}");
    let page = browser.get("/ui/").await?;
    ensure!(page.status == 200 && html(&page).contains("system:serviceaccount:people:admin"), "{page:?}");
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "same-origin"),
    ] {
        ensure!(page.headers[name] == value, "{name}: {page:?}");
    }
    let policy = page.headers["content-security-policy"].to_str()?;
    ensure!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    ensure!(!policy.contains("unsafe"), "{policy}");
    let of_api = browser.get("/api/v1/opsjobs").await?;
    ensure!(of_api.status == 401, "the API takes no cookie: {of_api:?}");

    let out = served.send(None, Method::POST, "/ui/logout", Sent { body: Vec::new(), headers: &[] }).await?;
    ensure!(out.status == 303 && out.headers["set-cookie"].to_str()?.contains("Max-Age=0"), "{out:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_viewer_sees_what_he_may_read_and_nothing_of_a_page_of_others() -> anyhow::Result<()> {
    let served = served().await?;
    for name in ["red", "blue"] {
        namespace(&served, name).await?;
        install::apply(&served.admin, &job(name, &format!("of-{name}"))).await?;
    }
    let admin = Browser::of(&served, &served.token("admin").await?).await?;
    let listed = patiently("the admin sees both", async || {
        let page = admin.page("/ui/?namespace=red,blue").await?;
        Ok(page.contains("of-red") && page.contains("of-blue"))
    });
    listed.await?;
    let viewer = Browser::of(&served, &served.token("viewer").await?).await?;
    let answer = viewer.get("/ui/").await?;
    ensure!(answer.status == 403 && html(&answer).contains("list operationjobs.apps.kusionstack.io"), "{answer:?}");
    allow_in(&served, "red", "viewer").await?;
    let seen =
        patiently("the viewer sees his own", async || Ok(viewer.get("/ui/?namespace=red,blue").await?.status == 200));
    seen.await?;
    let page = viewer.page("/ui/?namespace=red,blue").await?;
    ensure!(page.contains("of-red") && !page.contains("of-blue"), "{page}");
    ensure!(viewer.get("/ui/").await?.status == 403, "not in the whole cluster");
    ensure!(viewer.get("/ui/opj/blue/of-blue").await?.status == 403, "not the other one");
    let page = viewer.page("/ui/opj/red/of-red").await?;
    ensure!(page.contains("&lt;script&gt;") && !page.contains("<script>alert"), "{page}");
    ensure!(viewer.get("/ui/plugins").await?.status == 403, "not the plugins");
    patiently("the admin sees the plugins", async || Ok(admin.page("/ui/plugins").await?.contains("reboot"))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_changes_live_until_its_viewer_loses_his_right() -> anyhow::Result<()> {
    let served = served().await?;
    namespace(&served, "red").await?;
    install::apply(&served.admin, &job("red", "first")).await?;
    let token = served.token("viewer").await?;
    let binding = allow_in(&served, "red", "viewer").await?;
    let viewer = Browser::of(&served, &token).await?;
    let seen = patiently("the job is shown", async || {
        let answer = viewer.get("/ui/?namespace=red").await?;
        Ok(answer.status == 200 && html(&answer).contains("first"))
    });
    seen.await?;
    let mut list = viewer.stream("/ui/?namespace=red").await?;
    let mut page = viewer.stream("/ui/opj/red/first").await?;
    list.until("beat", "").await?;
    install::apply(&served.admin, &job("red", "second")).await?;
    let row = list.until("fragment", "second").await?;
    ensure!(row.contains(r#""of":0"#) && !row.contains("first"), "{row}");
    operation_jobs(&served, "red").delete("first", &DeleteParams::default()).await?;
    list.until("gone", "row-opj").await?;
    page.until("resync", "").await?;
    let kind = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", "RoleBinding");
    let bindings: Api<DynamicObject> = Api::namespaced_with(served.admin.clone(), "red", &ApiResource::from_gvk(&kind));
    bindings.delete(&binding, &DeleteParams::default()).await?;
    let ended = list.until("end", "").await?;
    ensure!(ended.contains("list operationjobs.apps.kusionstack.io in namespace red"), "{ended}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_no_page_and_a_stream_without_a_viewer_say_so() -> anyhow::Result<()> {
    let served = served().await?;
    let admin = Browser::of(&served, &served.token("admin").await?).await?;
    ensure!(admin.get("/ui/nope/a/b").await?.status == 404, "no page");
    ensure!(Browser::new(&served).get("/ui/stream?of=/ui/").await?.status == 401, "no viewer");
    let mut forged = Browser::new(&served);
    forged.cookie = format!("{}x", admin.cookie);
    let answer = forged.get("/ui/").await?;
    ensure!(answer.status == 303 && location(&answer).contains("why=expired"), "{answer:?}");
    let headers = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    let linked = served.send(None, Method::GET, "/ui/", Sent { body: Vec::new(), headers: &headers }).await?;
    ensure!(linked.status == 200 && html(&linked).contains("http-equiv=\"refresh\""), "{linked:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_object_that_does_not_exist_is_not_found_until_the_object_appears() -> anyhow::Result<()> {
    let served = served().await?;
    namespace(&served, "red").await?;
    let admin = Browser::of(&served, &served.token("admin").await?).await?;
    let path = "/ui/opj/red/later";
    // The server may not have listed the kind yet.
    let missing = patiently("the page says so", async || {
        let answer = admin.get(path).await?;
        ensure!(matches!(answer.status, 404 | 503), "{answer:?}");
        Ok(answer.status == 404 && html(&answer).contains("does not exist"))
    });
    missing.await?;
    ensure!(admin.get(&format!("{path}?target=3")).await?.status == 404, "a target of nothing");
    let mut page = admin.stream(path).await?;
    install::apply(&served.admin, &job("red", "later")).await?;
    page.until("resync", "").await?;
    ensure!(admin.page(path).await?.contains("nobody"), "the page shows the job");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_failed_step_is_for_those_who_may_read_it() -> anyhow::Result<()> {
    let served = served_with(&["--web", "--web-logs"]).await?;
    namespace(&served, "red").await?;
    install::apply(&served.admin, &failing_flow("red")).await?;
    let admin = Browser::of(&served, &served.token("admin").await?).await?;
    let mut log = None;
    let failed = patiently("the step fails", async || {
        log = log_address(&html(&admin.get("/ui/jf/red/flow").await?));
        Ok(log.is_some())
    });
    failed.await?;
    let log = log.context("an address")?;
    let page = admin.page(&log).await?;
    for part in ["line 402\n", "line 500\n&lt;script&gt;\\u{1b}[31m", "exited with code 3", "logs pod/flow-build"] {
        ensure!(page.contains(part), "{part}: {page}");
    }
    ensure!(!page.contains("line 401\n") && !page.contains("<script>\u{1b}"), "{page}");
    let other = admin.get("/ui/log/jf/red/flow?job=other").await?;
    ensure!(other.status == 404 && html(&other).contains("no failed step"), "{other:?}");

    // The viewer may see the flow, then its pods, then their logs.
    let viewer = Browser::of(&served, &served.token("viewer").await?).await?;
    ensure!(viewer.get(&log).await?.status == 403, "not the flow");
    let mut rules =
        vec![json!({"apiGroups": ["api.practice.com"], "resources": ["jobflows"], "verbs": ["get", "list"]})];
    let steps = [
        ("list pods in namespace red", json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})),
        ("get pods/log in namespace red", json!({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]})),
    ];
    for (lacked, rule) in steps {
        served.allow("viewer", &Value::from(rules.clone())).await?;
        let refused = patiently("the right is named", async || {
            let answer = viewer.get(&log).await?;
            ensure!(answer.status == 403 && !html(&answer).contains("line 500"), "{answer:?}");
            Ok(html(&answer).contains(lacked))
        });
        refused.await?;
        rules.push(rule);
    }
    served.allow("viewer", &Value::from(rules)).await?;
    patiently("the viewer reads the log", async || Ok(viewer.get(&log).await?.status == 200)).await?;

    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(served.admin.clone(), "red");
    pods.delete_collection(&DeleteParams::default(), &Default::default()).await?;
    let gone = patiently("the pod is gone", async || {
        let answer = admin.get(&log).await?;
        Ok(answer.status == 404 && html(&answer).contains("no pod of the Job"))
    });
    gone.await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_without_the_flag_offer_no_log_and_read_none() -> anyhow::Result<()> {
    let served = served().await?;
    namespace(&served, "red").await?;
    install::apply(&served.admin, &failing_flow("red")).await?;
    let admin = Browser::of(&served, &served.token("admin").await?).await?;
    let shown = patiently("the failure is shown", async || {
        let page = html(&admin.get("/ui/jf/red/flow").await?);
        ensure!(log_address(&page).is_none(), "{page}");
        Ok(page.contains("StepFailed"))
    });
    shown.await?;
    let answer = admin.get("/ui/log/jf/red/flow?job=flow-build").await?;
    ensure!(answer.status == 404 && !html(&answer).contains("line 500"), "{answer:?}");
    Ok(())
}
