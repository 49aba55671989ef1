"""The pages of jobs in a real Chromium, on a real host and server with a cluster in memory.

`cargo xtask test rest` runs this file with the paths of the host's binary, of the components, and of the program that writes
sample pages. Each function whose name begins with `test_` is a test. The figures are printed, and only counts and sizes are bounds.
"""

import atexit
import contextlib
import functools
import http.server
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
import urllib.request
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

HOST, COMPONENTS, SAMPLES = sys.argv[1:4]
#: A part of the names of the tests to run; all tests by default.
ONLY = sys.argv[4] if len(sys.argv) > 4 else ""
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--ignore-certificate-errors", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
#: The certificates of tests are signed by nobody.
UNVERIFIED = ssl.create_default_context()
UNVERIFIED.check_hostname, UNVERIFIED.verify_mode = False, ssl.CERT_NONE
#: The longest wait for something that another process does, in seconds.
PATIENCE = 60
#: A text with everything that could break out of a page. It is an action, which has no rules for its characters.
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'&</script>" + "x" * 200


def until(what, look):
    """Returns the first true value of `look`."""
    begun, last = time.monotonic(), None
    while time.monotonic() - begun < PATIENCE:
        try:
            last = look()
            if last:
                return last
        except OSError as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(f"never: {what}; last: {last}")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Cluster:
    """A cluster in memory with a host, and the requests to its API, which asks for no login."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.log = open(self.folder / "dev.log", "w+")
        self.kubeconfig = self.folder / "kubeconfig"
        self.page = f"http://127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [HOST, "dev", "--plugins", COMPONENTS, "--grant-all", "--rest", self.page.removeprefix("http://"),
             "--read-rate", "100000", "--kubeconfig-out", self.kubeconfig, "--data", self.folder / "data"],
            stdout=self.log, stderr=self.log, cwd=folder)
        until("the host is ready", lambda: urllib.request.urlopen(self.page + "/readyz").status == 200)
        self.api = re.search(r"server: \"([^\"]+)\"", self.kubeconfig.read_text()).group(1)

    def call(self, method, path, body=None, kind="application/json"):
        request = urllib.request.Request(self.api + path, method=method, headers={"content-type": kind},
                                         data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def job(self, namespace, name, **spec):
        spec = {"action": "Replace", "targets": [{"name": "nobody"}], **spec}
        return self.call("POST", f"/apis/apps.kusionstack.io/v1alpha1/namespaces/{namespace}/operationjobs", {
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": {"name": name}, "spec": spec})

    def failed(self, namespace, name):
        """Returns the number of failed targets of an OperationJob."""
        job = self.call("GET", f"/apis/apps.kusionstack.io/v1alpha1/namespaces/{namespace}/operationjobs/{name}")
        return job.get("status", {}).get("failedPodCount", 0)

    def patch(self, namespace, name, patch):
        path = f"/apis/apps.kusionstack.io/v1alpha1/namespaces/{namespace}/operationjobs/{name}"
        return self.call("PATCH", path, patch, "application/merge-patch+json")

    def namespace(self, name):
        self.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def token(self, name):
        base = "/api/v1/namespaces/default/serviceaccounts"
        self.call("POST", base, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
        spec = {"audiences": ["oarlock"]}
        answer = self.call("POST", f"{base}/{name}/token",
                           {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        return answer["status"]["token"]

    def allow(self, namespace, account, more=()):
        """Lets an account read the OperationJobs of a namespace, and do what further rules say."""
        base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        name = f"{account}-reads"
        rules = [{"apiGroups": ["apps.kusionstack.io"], "resources": ["operationjobs"], "verbs": ["get", "list"]}, *more]
        group = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
        self.call("POST", f"{base}/roles", {**group, "kind": "Role", "rules": rules})
        self.call("POST", f"{base}/rolebindings", {
            **group, "kind": "RoleBinding", "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}]})
        return f"{base}/rolebindings/{name}"

    def end(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.log.seek(0)
        said = self.log.read()
        assert "panicked at" not in said, said


class Server:
    """A server with pages beside the host. It asks for a login."""

    def __init__(self, cluster, *more, has_tls=False):
        self.cluster, self.port, self.more = cluster, free_port(), [*more]
        self.url = f"http{'s' if has_tls else ''}://127.0.0.1:{self.port}"
        if has_tls:
            key, certificate = cluster.folder / "tls.key", cluster.folder / "tls.crt"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                            "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                           check=True, stderr=subprocess.DEVNULL)
            self.more += ["--cert", certificate, "--key", key]
        self.start()

    def start(self):
        with open(self.cluster.folder / "server.log", "a") as log:
            self.process = subprocess.Popen(
                [HOST, "server", "--web", "--listen", f"127.0.0.1:{self.port}", "--health", "127.0.0.1:0", "--read-rate", "100000",
                 "--kubeconfig", self.cluster.kubeconfig, "--data", self.cluster.folder / "data", *self.more], stdout=log, stderr=log)
        # A failed test leaves its server.
        atexit.register(self.process.kill)
        until("the server is ready", lambda: urllib.request.urlopen(self.url + "/readyz", context=UNVERIFIED).status == 200)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.terminate()
        self.process.wait(PATIENCE)


class Tab:
    """A tab of a browser. It fails for every error of its scripts and for every request elsewhere."""

    def __init__(self, context, base):
        self.page, self.base, self.errors, self.asked = context.new_page(), base, [], []
        self.page.set_default_timeout(PATIENCE * 1000)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def go(self, path):
        answer = self.page.goto(self.base + path)
        return answer.status

    def log_in(self, token, path="/ui/"):
        self.go(path)
        self.page.fill("input[name=token]", token)
        self.page.click("section#login button[type=submit]")
        self.page.wait_for_selector("#filters, #refusal, #head")

    def state(self, *words):
        """Waits until the corner of the page says one of these states."""
        selector = ", ".join(f"#live[data-state={word}]" for word in words)
        self.page.wait_for_selector(selector, state="attached")

    def shows(self, text):
        self.page.get_by_text(text).first.wait_for(state="attached")

    def check(self):
        assert not self.errors, self.errors
        elsewhere = [url for url in self.asked if not url.startswith((self.base, "data:"))]
        assert not elsewhere, elsewhere
        self.page.close()


def accessible(tab, what):
    """Fails for everything that axe finds."""
    found = Axe().run(tab.page)
    assert found.violations_count == 0, f"{what}:\n{found.generate_report()}"


@contextlib.contextmanager
def tab_of(browser, base, **options):
    context = browser.new_context(**options)
    tab = Tab(context, base)
    try:
        yield tab
    except Exception:
        print(f"    {tab.page.url} shows: {tab.page.inner_text('body')[:2000]}")
        raise
    tab.check()
    context.close()


def test_an_empty_cluster_says_how_to_begin_and_a_new_job_appears_by_itself(cluster, browser):
    with tab_of(browser, cluster.page) as tab:
        assert tab.go("/ui/") == 200
        tab.state("live")
        accessible(tab, "an empty list")
        begun = time.monotonic()
        cluster.job("default", "first-of-all", paused=True)
        tab.page.wait_for_selector("#rows tr")
        print(f"    a new job is shown after {time.monotonic() - begun:.2f} s")
        tab.page.click("text=first-of-all")
        tab.state("live")
        tab.shows("nobody")
        accessible(tab, "a job")
        cluster.patch("default", "first-of-all", {"spec": {"paused": False}})
        tab.page.wait_for_selector("header#head >> text=Failed")


def test_names_and_texts_that_are_html_stay_texts(cluster, browser):
    cluster.job("default", "hostile", action=HOSTILE)
    for width in [360, 1280, 3840]:
        with tab_of(browser, cluster.page, viewport={"width": width, "height": 900}) as tab:
            tab.go("/ui/?q=hostile")
            tab.page.wait_for_selector("#rows tr")
            tab.page.click("text=hostile")
            tab.page.wait_for_selector("header#head")
            wide = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{width}: the page is {wide} pixels too wide"
            accessible(tab, f"a hostile job at {width}")
            tab.go("/ui/opj/%3Cscript%3Ealert(1)%3C%2Fscript%3E/%E2%80%AEx")
            accessible(tab, "a page of nothing")


def bytes_of_stream(base, path, version, seconds):
    """Returns the bytes that a stream of a page sends in this time."""
    query = urllib.parse.urlencode([("of", path), ("at", version)])
    total, begun = 0, time.monotonic()
    with urllib.request.urlopen(f"{base}/ui/stream?{query}", timeout=PATIENCE) as stream:
        while time.monotonic() - begun < seconds:
            total += len(stream.read1())
    return total


def test_ten_thousand_targets_stay_small_and_quick(cluster, browser):
    targets = [{"name": f"web-7d9f8c6b5d-{number:05}"} for number in range(10_000)]
    cluster.job("default", "huge", targets=targets, paused=True)
    path = "/ui/opj/default/huge"
    with tab_of(browser, cluster.page) as tab:
        tab.go("/ui/")
        tab.page.wait_for_selector("#rows >> text=huge")
        begun = time.monotonic()
        tab.go(path)
        loaded = time.monotonic() - begun
        paint = tab.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
        size = len(tab.page.evaluate("document.documentElement.outerHTML").encode())
        nodes = tab.page.evaluate("document.querySelectorAll('*').length")
        print(f"    10,000 targets: {size / 1000:.0f} KB, {nodes} elements, loaded in {loaded:.2f} s, first content after {paint:.0f} ms")
        assert size <= 300_000 and nodes <= 3_000, (size, nodes)
        accessible(tab, "10,000 targets")
        tab.state("live")
        version = tab.page.get_attribute("#main", "data-at")
        cluster.patch("default", "huge", {"spec": {"paused": False, "parallelism": 50}})
        tab.page.wait_for_selector("header#head >> text=/failed/")
        ended, seconds = cluster.failed("default", "huge"), 5
        sent = bytes_of_stream(cluster.page, path, version, seconds)
        ended = cluster.failed("default", "huge") - ended
        memory = tab.page.evaluate("performance.memory.usedJSHeapSize") / 1e6
        print(f"    {ended / seconds:.0f} targets change a second: {sent / seconds / 1000:.0f} KB a second, {memory:.0f} MB of scripts")
        assert tab.page.evaluate("document.querySelectorAll('*').length") <= 3_000
        cluster.patch("default", "huge", {"spec": {"paused": True}})


@contextlib.contextmanager
def samples(cluster):
    """Writes the sample pages, and serves them with the policy of the real pages. Yields their folder and their address."""
    folder = cluster.folder / "samples"
    subprocess.run([SAMPLES, folder], check=True, stdout=subprocess.DEVNULL)
    policy = urllib.request.urlopen(cluster.page + "/ui/").headers["Content-Security-Policy"]

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            # The address of a hostile sample is no name of a file.
            return self.send_error(404) if "%00" in self.path else super().do_GET()

        def end_headers(self):
            self.send_header("Content-Security-Policy", policy)
            super().end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


#: A page without the ages that the script computes, from its `main` element.
PLAIN = """(main) => {
  const copy = main.cloneNode(true);
  copy.querySelectorAll("time[data-is]").forEach((time) => { time.textContent = ""; });
  return copy.outerHTML;
}"""
#: Replaces the shared stream by a port, through which a test sends the events.
FED = "window.SharedWorker = class { constructor() { const pair = new MessageChannel(); window.fed = pair.port1; this.port = pair.port2; } };"


def test_events_turn_a_page_into_the_page_of_the_changed_object(cluster, browser):
    with samples(cluster) as (folder, base):
        for name, events, changed in [("job-10000", "changes", "changed"), ("flow-30", "flow-changes", "flow-changed")]:
            with tab_of(browser, base) as tab:
                tab.page.add_init_script(FED)
                tab.go(f"/{name}.html")
                tab.page.evaluate("fed.postMessage({ mode: 'live' })")
                tab.state("live")
                for event in (folder / f"{events}.events").read_text().split("\n\n")[:-1]:
                    kind, data = (line.partition(": ")[2] for line in event.split("\n"))
                    tab.page.evaluate("([name, data]) => fed.postMessage({ name, data })", [kind, json.loads(data)])
                html = (folder / f"{changed}.html").read_text()
                wanted = tab.page.evaluate(
                    f"(html) => ({PLAIN})(new DOMParser().parseFromString(html, 'text/html').getElementById('main'))", html)
                until("the events have come", lambda: tab.page.get_attribute("#main", "data-at") in wanted)
                assert tab.page.evaluate(f"({PLAIN})(document.getElementById('main'))") == wanted, f"{name} is not {changed}"


def test_sample_pages_fit_each_screen_and_axe_finds_nothing(cluster, browser):
    with samples(cluster) as (folder, base):
        fit_each_screen(sorted(path.name for path in folder.glob("*.html")), base, browser)


def fit_each_screen(pages, base, browser):
    assert len(pages) >= 10, pages
    for width, scheme in [(360, "dark"), (1280, "light"), (3840, "dark")]:
        with tab_of(browser, base, viewport={"width": width, "height": 900}, color_scheme=scheme) as tab:
            for page in pages:
                assert tab.go(f"/{page}") == 200
                assert tab.page.locator("html.js").count() == 1, f"{page}: the policy does not let the script run"
                wide = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert wide <= 0, f"{page} at {width}: the page is {wide} pixels too wide"
                accessible(tab, f"{page} at {width}, {scheme}")
    print(f"    {len(pages)} pages at 3 sizes")


def test_a_page_outlives_its_server_and_catches_up(cluster, browser):
    server = Server(cluster)
    token = cluster.token("watcher")
    cluster.namespace("green")
    cluster.allow("green", "watcher")
    with tab_of(browser, server.url) as tab:
        tab.log_in(token, "/ui/?namespace=green")
        tab.state("live")
        server.kill()
        tab.state("poll", "lost")
        cluster.job("green", "made-meanwhile", paused=True)
        server.start()
        tab.page.wait_for_selector("#rows >> text=made-meanwhile")
        tab.state("live")
        cluster.job("green", "made-later", paused=True)
        tab.page.wait_for_selector("#rows >> text=made-later")
    server.end()


def test_two_browsers_see_what_each_may_and_nothing_once_the_right_is_gone(cluster, browser):
    server = Server(cluster)
    for name in ["red", "blue"]:
        cluster.namespace(name)
        cluster.job(name, f"of-{name}", paused=True)
    tokens = {name: cluster.token(f"{name}-viewer") for name in ["red", "blue"]}
    bindings = {name: cluster.allow(name, f"{name}-viewer") for name in ["red", "blue"]}
    with tab_of(browser, server.url) as red, tab_of(browser, server.url) as blue:
        for name, tab in [("red", red), ("blue", blue)]:
            tab.go("/ui/")
            accessible(tab, "the login")
            tab.log_in(tokens[name], "/ui/?namespace=red,blue")
            tab.shows(f"of-{name}")
            other = "blue" if name == "red" else "red"
            assert f"of-{other}" not in tab.page.content(), "a viewer sees what another one may see"
            assert tab.go(f"/ui/opj/{other}/of-{other}") == 403
            accessible(tab, "a refusal")
            tab.go(f"/ui/opj/{name}/of-{name}")
            tab.state("live")
        cluster.call("DELETE", bindings["red"])
        red.page.wait_for_selector("#refusal")
        red.state("ended")
        assert "of-red" not in red.page.inner_text("main")
        assert blue.page.get_attribute("#live", "data-state") == "live"
        blue.page.click("text=Log out")
        blue.page.wait_for_selector("section#login")
        blue.go("/ui/opj/blue/of-blue")
        blue.page.wait_for_selector("section#login")
    server.end()


def test_tabs_of_one_browser_share_one_stream(cluster, browser):
    for number in range(3):
        cluster.job("default", f"shared-{number}", paused=True)
    context = browser.new_context()
    tabs = [Tab(context, cluster.page) for _ in range(3)]
    for number, tab in enumerate(tabs):
        tab.go(f"/ui/opj/default/shared-{number}")
    for tab in tabs:
        tab.state("live")
    cluster.patch("default", "shared-2", {"spec": {"paused": False}})
    tabs[2].page.wait_for_selector("header#head >> text=Failed")
    for tab in tabs:
        assert not any("/ui/stream?" in url for url in tab.asked), "a tab has a stream of its own"
        tab.check()
    context.close()


#: Seals a token into the cookie of a session that ends some seconds from now, with the key in the Secret of the servers.
SEAL = """async ([key, token, seconds]) => {
  const bytes = (text) => Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0));
  const own = await crypto.subtle.importKey("raw", bytes(key), "HKDF", false, ["deriveKey"]);
  const info = new TextEncoder().encode("oarlock: the cookie of a page");
  const derive = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(), info };
  const sealing = await crypto.subtle.deriveKey(derive, own, { name: "AES-GCM", length: 256 }, false, ["encrypt"]);
  const iv = crypto.getRandomValues(new Uint8Array(12));
  const until = new DataView(new ArrayBuffer(8));
  until.setBigInt64(0, BigInt(Math.floor(Date.now() / 1000) + seconds));
  const session = new Uint8Array([...new Uint8Array(until.buffer), ...new TextEncoder().encode(token)]);
  const sealed = new Uint8Array(await crypto.subtle.encrypt({ name: "AES-GCM", iv }, sealing, session));
  return btoa(String.fromCharCode(...iv, ...sealed)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}"""


def test_a_login_over_tls_uses_http_2_and_ends_with_its_session(cluster, browser):
    server, token = Server(cluster, has_tls=True), cluster.token("tls-viewer")
    cluster.namespace("tls")
    cluster.job("tls", "sealed", paused=True)
    cluster.allow("tls", "tls-viewer")
    with tab_of(browser, server.url) as tab:
        tab.log_in(token, "/ui/?namespace=tls")
        tab.shows("sealed")
        tab.state("live")
        for protocol in ["navigation", "resource"]:
            used = tab.page.evaluate(f"performance.getEntriesByType('{protocol}').map((entry) => entry.nextHopProtocol)")
            assert used and set(used) == {"h2"}, (protocol, used)
        [cookie] = tab.page.context.cookies()
        shown = {name: cookie[name] for name in ["name", "path", "httpOnly", "secure", "sameSite"]}
        assert shown == {"name": "__Host-oarlock", "path": "/", "httpOnly": True, "secure": True, "sameSite": "Strict"}, shown
        assert 3000 < cookie["expires"] - time.time() <= 3600, "the cookie ends with the token"
        key = cluster.call("GET", "/api/v1/namespaces/oarlock-system/secrets/oarlock-rest")["data"]["key"]
        sealed = tab.page.evaluate(SEAL, [key, token, 4])
        tab.page.context.clear_cookies()
        tab.page.context.add_cookies([{**cookie, "value": sealed}])
        tab.go("/ui/opj/tls/sealed")
        tab.state("live")
        tab.page.wait_for_selector("section#login >> text=Your login has expired")
        tab.state("ended")
        assert tab.page.locator("header#head").count() == 0, "the page shows the job no longer"
        accessible(tab, "an expired login")
        tab.page.fill("input[name=token]", token)
        tab.page.click("section#login button[type=submit]")
        tab.shows("sealed")
        tab.state("live")
        assert tab.page.url.endswith("/ui/opj/tls/sealed"), "the login leads back to the page"
        tab.page.click("text=Log out")
        tab.page.wait_for_selector("section#login >> text=You are logged out")
        assert not tab.page.context.cookies(), "the cookie is gone"
    server.end()


LEASE = "/apis/coordination.k8s.io/v1/namespaces/oarlock-system/leases/oarlock"


def test_progress_goes_on_over_a_change_of_the_leader(cluster, browser):
    grants = Path(__file__).parents[2] / "plugins/replace/grant.yaml"
    with open(cluster.folder / "host.log", "w") as log:
        other = subprocess.Popen(
            [HOST, "host", "--plugins", COMPONENTS, "--grants", grants, "--identity", "other", "--listen", "127.0.0.1:0",
             "--kubeconfig", cluster.kubeconfig], stdout=log, stderr=log)
    targets = [{"name": f"web-{number:05}"} for number in range(5_000)]
    cluster.job("default", "led", targets=targets, parallelism=2)
    atexit.register(other.kill)
    holder = lambda: cluster.call("GET", LEASE)["spec"].get("holderIdentity")
    first = holder()
    with tab_of(browser, cluster.page) as tab:
        tab.go("/ui/opj/default/led")
        tab.state("live")
        shown = lambda: int((re.search(r"([0-9,]+) failed", tab.page.inner_text("header#head")) or ["", "0"])[1].replace(",", ""))
        until("the first leader makes progress", lambda: shown() > 0)
        # The leader that finds another holder in the lease steps down, and the holder takes the lease at once.
        cluster.call("PATCH", LEASE, {"spec": {"holderIdentity": "other"}}, "application/merge-patch+json")
        until("the other host leads", lambda: "took the lease" in (cluster.folder / "host.log").read_text())
        before = shown()
        until("the page shows progress of the new leader", lambda: shown() > before + 20)
        assert holder() == "other" and tab.page.get_attribute("#live", "data-state") == "live"
        other.terminate()
        other.wait(PATIENCE)
        until("the first host leads again", lambda: holder() == first)
        before = shown()
        until("the page shows its progress", lambda: shown() > before + 20)
        cluster.patch("default", "led", {"spec": {"paused": True}})


def test_a_log_is_opened_in_its_row_and_stays_while_the_page_changes(cluster, browser):
    server = Server(cluster, "--web-logs")
    cluster.namespace("logs")
    flow = {"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "metadata": {"name": "flow"}, "spec": {"flows": []}}
    script = "seq -f 'line %g' 300; echo '<img src=x onerror=alert(1)>\u001b[31m'; sleep 1; exit 3"
    container = {"name": "c", "image": "busybox", "command": ["sh", "-c", script]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    flow["spec"]["flows"] = [{"name": "build", "jobTemplate": {"backoffLimit": 0, "template": template}}]
    cluster.call("POST", "/apis/api.practice.com/v1alpha1/namespaces/logs/jobflows", flow)
    see = {"apiGroups": ["api.practice.com"], "resources": ["jobflows"], "verbs": ["get", "list"]}
    read = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}
    for account, rules in [("reader", [see, read]), ("seer", [see])]:
        token = cluster.token(account)
        cluster.allow("logs", account, rules)
        with tab_of(browser, server.url) as tab:
            tab.page.add_init_script(FED)
            tab.log_in(token, "/ui/jf/logs/flow")
            tab.page.evaluate("fed.postMessage({ mode: 'live' })")
            tab.state("live")
            if tab.page.locator("details[data-log]").count() == 0:
                until("the step fails", lambda: "data-log" in tab.page.content() or tab.page.reload() and False)
            tab.page.click("details[data-log] summary")
            if account == "seer":
                tab.shows("Your account lacks the right to list pods in namespace logs")
                accessible(tab, "a refused log")
                continue
            tab.shows("line 300")
            assert "line 201\n" not in tab.page.inner_text("pre.log"), "the page shows the last 100 lines"
            assert "<img src=x onerror=alert(1)>\\u{1b}[31m" in tab.page.inner_text("pre.log")
            accessible(tab, "a log")
            tab.page.evaluate("() => { fed.onmessage = ({ data }) => { window.isLoaded ||= data.is === 'loaded'; }; }")
            tab.page.evaluate("fed.postMessage({ name: 'resync', data: { of: 0 } })")
            until("the page is loaded anew", lambda: tab.page.evaluate("window.isLoaded"))
            assert "line 300" in tab.page.inner_text("details[open][data-log] pre.log"), "an open log stays"
            assert tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
            address = tab.page.get_attribute("details[data-log]", "data-log")
            assert tab.go(address) == 200, "without the script, the link opens a page"
            accessible(tab, "the page of a log")
    server.end()


def main():
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_") and ONLY in name]
    failed = []
    with tempfile.TemporaryDirectory(prefix="oarlock-pages-") as folder, sync_playwright() as playwright:
        cluster = Cluster(folder)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name, test in tests:
            begun = time.monotonic()
            try:
                test(cluster, browser)
                print(f"  {time.monotonic() - begun:5.1f} s  {name}: ok", flush=True)
            except Exception:
                failed.append(name)
                print(f"  {time.monotonic() - begun:5.1f} s  {name}: FAILED\n{traceback.format_exc()}", flush=True)
        browser.close()
        cluster.end()
    print(f"pages: {len(tests) - len(failed)} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
