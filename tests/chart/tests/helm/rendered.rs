//! The chart renders what `oarlock manifests` prints.

use std::collections::BTreeMap;

use oarlock::manifests::{
    DataPlace, Deployed, Egress, GrantedAccess, PluginSource, PodPolicies, deployment, flow_manifests_with,
    grant_manifests, manifests_with, ops_manifests, page_log_manifests, page_manifests, rest_manifests,
};
use serde_json::{Value, json};

use crate::program::{REFERENCE, documents, rendered};

type Id = (String, String, String);

/// Documents by kind, namespace and name, without what Helm adds and without the order of lists that have none.
fn comparable(text: &str) -> BTreeMap<Id, Value> {
    let mut found = BTreeMap::new();
    for mut document in documents(text) {
        if document.pointer("/metadata/annotations/helm.sh~1hook").is_some() {
            continue;
        }
        let word = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut id = (word("/kind"), word("/metadata/namespace"), word("/metadata/name"));
        if id.0 == "Namespace" && id.2 == "oarlock-system" {
            continue;
        }
        if id.2.starts_with("oarlock-grants-") {
            "oarlock-grants".clone_into(&mut id.2);
            document = grants(&document);
        }
        normalize(&mut document);
        assert!(found.insert(id.clone(), document).is_none(), "{id:?} is there twice");
    }
    found
}

/// The grants mean the same, although their texts differ.
fn grants(document: &Value) -> Value {
    let grants = oarlock_wasm::parse_grants(document["data"]["grants.yaml"].as_str().unwrap()).unwrap();
    assert_eq!(document["immutable"], true);
    json!({"grants": format!("{grants:?}")})
}

fn normalize(document: &mut Value) {
    for field in ["labels", "annotations"] {
        let Some(map) = document.pointer_mut(&format!("/metadata/{field}")).and_then(Value::as_object_mut) else {
            continue;
        };
        map.retain(|name, _| !name.starts_with("helm.sh/") && name != "app.kubernetes.io/instance");
        if map.is_empty() {
            document["metadata"].as_object_mut().unwrap().remove(field);
        }
    }
    // Two policies have no label in `oarlock manifests`.
    if document["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmissionPolicy")) {
        document["metadata"].as_object_mut().unwrap().remove("labels");
    }
    let Some(pod) = document.pointer_mut("/spec/template/spec") else { return };
    sort(pod.get_mut("volumes"), |volume| {
        if volume["name"] == "grants" {
            volume["configMap"] = json!("the grants");
        }
    });
    for container in pod["containers"].as_array_mut().unwrap() {
        sort(container.get_mut("args"), |argument| {
            if argument.as_str().is_some_and(|text| text.starts_with("--grants-digest=sha256:")) {
                *argument = json!("--grants-digest");
            }
        });
        for list in ["env", "volumeMounts"] {
            sort(container.get_mut(list), |_| {});
        }
    }
}

fn sort(list: Option<&mut Value>, change: impl Fn(&mut Value)) {
    let Some(list) = list.and_then(Value::as_array_mut) else { return };
    list.iter_mut().for_each(change);
    list.sort_by_key(Value::to_string);
}

fn granted(plugins: &[(&str, &str)]) -> (String, GrantedAccess) {
    let mut text = String::new();
    for (plugin, namespaces) in plugins {
        let path = oarlock_chart::root().join(format!("plugins/{plugin}/grant.yaml"));
        let grant = std::fs::read_to_string(path).unwrap();
        text += &grant.replace("namespaces: [\"*\"]", &format!("namespaces: {namespaces}"));
    }
    let grants = oarlock_wasm::parse_grants(&text).unwrap();
    (text, GrantedAccess::of(grants))
}

fn assert_same(values: &[&str], more: &[&str], printed: &str) {
    let (chart, manifests) = (comparable(&rendered(values, more).unwrap()), comparable(printed));
    let names = |all: &BTreeMap<Id, Value>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&chart), names(&manifests), "{values:?}");
    for (id, document) in &manifests {
        assert_eq!(chart[id], *document, "{values:?}: {id:?}");
    }
}

#[test]
fn the_chart_is_what_manifests_prints_for_the_default_values() {
    let (text, access) = granted(&[("replace", "[\"*\"]")]);
    let deployed = deployment(&Deployed::bare(REFERENCE, &text, &access.host)).unwrap();
    assert_same(&[], &[], &(manifests_with(&access, PodPolicies::USUAL).unwrap() + "---\n" + &deployed));
}

#[test]
fn the_chart_is_what_manifests_prints_for_each_plugin_in_its_namespaces() {
    let plugins = [
        ("addon", "[oarlock-ops]"),
        ("dumplog", "[a, b]"),
        ("exportimage", "[a]"),
        ("preflight", "[oarlock-ops, a]"),
        ("reboot", "[\"*\"]"),
        ("restart", "[b]"),
    ];
    let (text, mut access) = granted(&plugins);
    access.tasks_egress = vec![Egress::Cidr("10.0.0.0/8".to_owned()), Egress::All];
    let mut values = vec![
        "plugins.replace.enabled=false".to_owned(),
        "ops.enabled=true".into(),
        "tasks.egress={10.0.0.0/8,all}".into(),
        "policies.guardHolds=true".into(),
    ];
    for (plugin, namespaces) in plugins {
        let list = if namespaces == "[\"*\"]" {
            namespaces.to_owned()
        } else {
            format!("[\"{}\"]", namespaces.trim_matches(['[', ']']).replace(", ", "\",\""))
        };
        values.extend([format!("plugins.{plugin}.enabled=true"), format!("plugins.{plugin}.namespaces={list}")]);
    }
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let deployed = deployment(&Deployed::bare(REFERENCE, &text, &access.host)).unwrap();
    let printed =
        [manifests_with(&access, PodPolicies::ALL).unwrap(), ops_manifests(&access.host), deployed].join("---\n");
    assert_same(&values, &[], &printed);
}

#[test]
fn the_chart_is_what_manifests_prints_for_flows_files_history_and_the_server() {
    let (text, access) = granted(&[("replace", "[\"*\"]")]);
    let of = Deployed {
        cluster_id: Some("c"),
        history_secret: Some("h"),
        ca: Some("authorities"),
        export_registry: Some("r:5"),
        export_secret: Some("e"),
        rest: Some("oarlock-rest-tls"),
        ..Deployed::bare(REFERENCE, &text, &access.host)
    };
    let hosts = ["x".to_owned()];
    let of = Deployed { export_hosts: &hosts, ..of };
    let always = [
        "ops.enabled=true",
        "server.enabled=true",
        "clusterId=c",
        "history.secret=h",
        "ca=authorities",
        "export.registry=r:5",
        "export.secret=e",
        "export.hosts={x}",
        "flows.enabled=true",
    ];
    let (claim, bucket) = (DataPlace::Claim("files".into()), DataPlace::Bucket("s3://b/p".into()));
    let (image, map, volume) =
        (PluginSource::Image("i:1".into()), PluginSource::ConfigMap("m".into()), PluginSource::Claim("v".into()));
    let digest = "plugins.replace.digest=sha256:4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d";
    let pinned = text.replace("anyVersion: true", &digest.replace("plugins.replace.digest=", "digest: "));
    let cases: [(&[&str], Deployed<'_>, &[&str]); 5] = [
        (&["flows.allNamespaces=true"], of, &[]),
        (
            &["flows.namespaces={a,b}", "data.claim=files", "server.web.enabled=true", "server.web.logs=true"],
            Deployed { data: Some(&claim), web: true, web_logs: true, ..of },
            &["a", "b"],
        ),
        (
            &[
                "flows.namespaces={a}",
                "data.bucket=s3://b/p",
                "data.secret=k",
                "server.dataSecret=q",
                "server.historySecret=g",
                "server.web.enabled=true",
                "plugins.from.image=i:1",
                digest,
            ],
            Deployed {
                data: Some(&bucket),
                data_secret: Some("k"),
                server_data_secret: Some("q"),
                server_history_secret: Some("g"),
                plugins: Some(&image),
                grants: &pinned,
                web: true,
                ..of
            },
            &["a"],
        ),
        (
            &["flows.namespaces={a}", "plugins.from.configMap=m", digest],
            Deployed { plugins: Some(&map), grants: &pinned, ..of },
            &["a"],
        ),
        (
            &["flows.namespaces={a}", "plugins.from.claim=v", digest],
            Deployed { plugins: Some(&volume), grants: &pinned, ..of },
            &["a"],
        ),
    ];
    for (values, of, bind) in cases {
        let bind: Vec<String> = bind.iter().map(|name| (*name).to_owned()).collect();
        let mut parts = vec![
            manifests_with(&access, PodPolicies::USUAL).unwrap(),
            flow_manifests_with(&access.host, &bind).unwrap(),
            ops_manifests(&access.host),
            rest_manifests(&access.host),
            deployment(&of).unwrap(),
        ];
        parts.extend(of.web.then(|| page_manifests(&access.host)));
        parts.extend(of.web_logs.then(|| page_log_manifests(&access.host)));
        assert_same(&[&always[..], values].concat(), &[], &parts.join("---\n"));
    }
}

#[test]
fn grants_of_other_plugins_come_with_their_roles_tasks_and_policies() {
    let (text, access) = granted(&[("reboot", "[ops]"), ("dumplog", "[team]")]);
    let path = std::env::temp_dir().join(format!("oarlock-granted-{}.yaml", std::process::id()));
    std::fs::write(&path, grant_manifests(&access, &text).unwrap()).unwrap();
    let (all, access) = granted(&[("replace", "[web]"), ("reboot", "[ops]"), ("dumplog", "[team]")]);
    let deployed = deployment(&Deployed::bare(REFERENCE, &all, &access.host)).unwrap();
    let printed = manifests_with(&access, PodPolicies::USUAL).unwrap() + "---\n" + &deployed;
    let file = format!("grants={}", path.display());
    assert_same(&["plugins.replace.namespaces={web}"], &["--set-file", &file], &printed);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_digest_of_the_grants_is_the_one_that_the_host_computes() {
    let all = documents(&rendered(&["plugins.restart.enabled=true"], &[]).unwrap());
    let map = all
        .iter()
        .find(|document| document["kind"] == "ConfigMap" && document["data"]["grants.yaml"].is_string())
        .unwrap();
    let expected =
        format!("--grants-digest={}", oarlock_wasm::grants_digest(map["data"]["grants.yaml"].as_str().unwrap()));
    let host = all.iter().find(|document| document["kind"] == "Deployment").unwrap();
    assert!(
        host["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap().contains(&json!(expected)),
        "{expected}"
    );
    assert!(host.to_string().contains(map["metadata"]["name"].as_str().unwrap()));
}

#[test]
fn kinds_of_other_projects_are_rendered_only_if_the_cluster_serves_them() {
    let values = [
        "ops.enabled=true",
        "server.enabled=true",
        "server.tls.certManager.enabled=true",
        "server.tls.certManager.issuerRef.name=ca",
        "metrics.serviceMonitor.enabled=true",
        "metrics.prometheusRule.enabled=true",
    ];
    let kinds = |more: &[&str]| {
        let all = documents(&rendered(&values, more).unwrap());
        let others = all.into_iter().filter_map(|document| Some(document["kind"].as_str()?.to_owned()));
        others
            .filter(|kind| ["Certificate", "PrometheusRule", "ServiceMonitor"].contains(&kind.as_str()))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(&[]), Vec::<String>::new());
    assert_eq!(kinds(&["--api-versions", "cert-manager.io/v1"]), ["Certificate"]);
    assert_eq!(kinds(&["--api-versions", "monitoring.coreos.com/v1"]), ["PrometheusRule", "ServiceMonitor"]);
}

#[test]
fn the_alerts_and_the_dashboards_are_those_of_deploy() {
    let values = ["metrics.prometheusRule.enabled=true", "metrics.dashboards.enabled=true"];
    let all = documents(&rendered(&values, &["--api-versions", "monitoring.coreos.com/v1"]).unwrap());
    let read = |path: &str| std::fs::read_to_string(oarlock_chart::root().join("deploy").join(path)).unwrap();
    let rule = all.iter().find(|document| document["kind"] == "PrometheusRule").unwrap();
    assert_eq!(vec![rule["spec"].clone()], documents(&read("alerts/oarlock.yaml")));
    let own = "metrics.prometheusRule.runbook=https://docs.test/alerts";
    let named = documents(&rendered(&[values[0], own], &["--api-versions", "monitoring.coreos.com/v1"]).unwrap());
    let links = serde_json::to_string(&named).unwrap();
    assert!(links.contains("https://docs.test/alerts#oarlocknoleader") && !links.contains("oarlock.dev/docs"));
    for name in ["oarlock-jobs", "oarlock-overview", "oarlock-rest"] {
        let map = format!("{name}-dashboard");
        let map = all.iter().find(|document| document["metadata"]["name"] == map.as_str()).unwrap();
        assert_eq!(map["data"][format!("{name}.json")], read(&format!("dashboards/{name}.json")).as_str());
    }
}
