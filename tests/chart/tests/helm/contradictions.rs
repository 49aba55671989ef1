//! Values that contradict each other are refused with the fix.

use crate::program::{chart, helm, rendered, text};

/// Values, and a part of the message.
const REFUSED: [(&[&str], &str); 29] = [
    (&["image.repository="], "set it to the registry"),
    (&["plugins.from.configMap=a", "plugins.from.claim=b"], "leave one of them"),
    (&["plugins.from.configMap=a"], "set it to the digest that `oarlock plugin inspect FILE` prints"),
    (&["plugins.dumplog.enabled=true"], "name the namespaces"),
    (&["plugins.reboot.enabled=true"], "set ops.enabled=true"),
    (&["flows.enabled=true"], "name flows.namespaces"),
    (&["flows.namespaces={a}"], "set flows.enabled=true"),
    (&["flows.enabled=true", "flows.allNamespaces=true", "flows.namespaces={a}"], "leave flows.namespaces empty"),
    (&["flows.enabled=true", "flows.namespaces={kube-system}"], "remove it"),
    (&["flows.enabled=true", "flows.namespaces={oarlock-system}"], "remove it"),
    (&["ops.enabled=true", "data.claim=a", "data.bucket=s3://b/c"], "remove one of them"),
    (&["ops.enabled=true", "data.claim=a", "replicas=2"], "remove replicas"),
    (&["ops.enabled=true", "data.secret=a"], "set data.bucket"),
    (&["data.bucket=s3://b/c"], "set ops.enabled=true"),
    (&["server.enabled=true"], "set ops.enabled=true"),
    (&["ops.enabled=true", "history.secret=a"], "set clusterId"),
    (&["export.hosts={a}"], "set export.registry"),
    (&["ops.enabled=true", "server.enabled=true", "server.dataSecret=a"], "set data.secret too"),
    (&["ops.enabled=true", "server.tls.certManager.enabled=true"], "set server.enabled=true"),
    (&["server.web.enabled=true"], "set server.enabled=true"),
    (&["server.web.logs=true"], "set server.web.enabled=true"),
    (&["serviceAccount.create=false"], "set serviceAccount.name"),
    (&["priorityClass.create=false"], "set priorityClass.name"),
    (&["image.repository=registry.example/oarlock:0.1"], "set image.tag"),
    (&["extraArgs={--grants-from=cluster}"], "leave out --grants"),
    // The schema refuses these.
    (&["replica=2"], "replica"),
    (&["replicas=many"], "replicas"),
    (&["image.digest=sha256:4f1d"], "digest"),
    (&["plugins.replace.namespaces={team-*}"], "namespaces"),
];

#[test]
fn values_that_contradict_each_other_are_refused_with_the_fix() {
    for (values, message) in REFUSED {
        // The value of the test comes last, so it wins.
        let refused = rendered(values, &[]).expect_err(&format!("{values:?} was rendered"));
        assert!(refused.contains(message), "{values:?}: {refused}");
    }
}

#[test]
fn grants_that_do_not_fit_are_refused_with_the_fix() {
    let folder = std::env::temp_dir().join(format!("oarlock-chart-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let grants = oarlock_wasm::parse_grants(oarlock::manifests::SHIPPED_GRANTS).unwrap();
    let access = oarlock::manifests::GrantedAccess::of(grants);
    let print = |access| oarlock::manifests::grant_manifests(access, oarlock::manifests::SHIPPED_GRANTS).unwrap();
    let mut other = access.clone();
    other.host.name = "bot".to_owned();
    let cases = [
        (print(&access), "set plugins.replace.enabled=false"),
        (print(&access) + "---\n" + &print(&access), "has not one ConfigMap"),
        (print(&other), "print them again with --account oarlock --namespace oarlock-system"),
        (oarlock::manifests().unwrap(), "--only-grants"),
        (oarlock::manifests::SHIPPED_GRANTS.to_owned(), "--only-grants"),
        ("a: [".to_owned(), "--only-grants"),
    ];
    let off = ["plugins.replace.enabled=false"];
    for (at, (grants, message)) in cases.into_iter().enumerate() {
        let path = folder.join("granted.yaml");
        std::fs::write(&path, &grants).unwrap();
        let file = format!("grants={}", path.display());
        let refused = rendered(if at == 0 { &[] } else { &off }, &["--set-file", &file])
            .expect_err(&format!("{grants} was rendered"));
        assert!(refused.contains(message), "{refused}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn lint_finds_nothing() {
    let output = helm(&std::env::temp_dir()).args(["lint", "--strict"]).arg(chart()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}
