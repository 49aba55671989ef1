//! One test per group of scripts.

use std::sync::Arc;

use oarlock_conformance::{Forget, Side, Sides, count_scripts, run_group};
use oarlock_sim::{Cluster, Options as SimOptions};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane, Options};
use tokio::sync::{OnceCell, RwLock};

/// Returns one control plane for all groups, because each script has its own namespace. It ends with this process.
async fn real() -> &'static ControlPlane {
    static REAL: OnceCell<ControlPlane> = OnceCell::const_new();
    REAL.get_or_try_init(|| control_plane::start(Options::default())).await.unwrap()
}

/// Guards the list of served kinds, which all groups share and some scripts extend.
static SERVED: RwLock<()> = RwLock::const_new(());

async fn agrees(group: &str) {
    let (_alone, _shared) = match group {
        "discovery" => (Some(SERVED.write().await), None),
        _ => (None, Some(SERVED.read().await)),
    };
    report(group, &sides().await).await;
}

/// Returns the shared control plane and a fresh in-memory cluster.
pub(crate) async fn sides() -> Sides {
    let plane = real().await;
    let client = plane.client(Account::Admin).await.unwrap();
    let real = Side { client, anonymous: plane.anonymous_client().await.unwrap(), forget: None };
    let client = kube::Client::new(Cluster::new(SimOptions::default()).service(), "default");
    let sim = Side { client: client.clone(), anonymous: client, forget: None };
    Sides { real, sim }
}

async fn report(group: &str, sides: &Sides) {
    let report = run_group(group, sides).await.unwrap();
    if let Some(folder) = std::env::var_os("OARLOCK_TRANSCRIPTS") {
        let path = std::path::Path::new(&folder).join(format!("{group}.txt"));
        std::fs::write(path, &report.transcript).unwrap();
    }
    let count = report.differences.len();
    assert!(count == 0, "{count} of {} scripts differ:\n\n{}", report.scripts, report.differences.join("\n"));
}

/// Runs on its own control plane, because its API server restarts.
#[tokio::test]
async fn expired() {
    let plane = Arc::new(control_plane::start(Options::default()).await.unwrap());
    let client = plane.client(Account::Admin).await.unwrap();
    let anonymous = plane.anonymous_client().await.unwrap();
    let forget: Forget = Arc::new(move || {
        let plane = plane.clone();
        Box::pin(async move { plane.forget_the_past().await })
    });
    let cluster = Cluster::new(SimOptions::default());
    let sim = kube::Client::new(cluster.service(), "default");
    let forget_in_memory: Forget = Arc::new(move || {
        cluster.compact();
        Box::pin(async { Ok(()) })
    });
    let real = Side { client, anonymous, forget: Some(forget) };
    let sim = Side { client: sim.clone(), anonymous: sim, forget: Some(forget_in_memory) };
    report("expired", &Sides { real, sim }).await;
}

/// Makes the tests, and the list that a test compares with the folder.
macro_rules! groups {
    ($($group:ident),* $(,)?) => {
        const TESTED: &[&str] = &[$(stringify!($group)),*];
        $(
            #[tokio::test]
            async fn $group() {
                agrees(stringify!($group)).await;
            }
        )*
    };
}

groups![
    access,
    admission,
    apply,
    containers,
    create,
    delete,
    discovery,
    dry_run,
    evict,
    impersonate,
    jobs,
    json_patch,
    kinds,
    list,
    merge_patch,
    names,
    schema,
    status,
    strategic_patch,
    table,
    tokens,
    update,
    watch,
];

#[test]
fn every_group_in_the_folder_has_a_test() {
    let mut tested: Vec<&str> = TESTED.iter().copied().chain(["expired"]).collect();
    tested.sort_unstable();
    assert_eq!(oarlock_conformance::groups().unwrap(), tested);
}

#[test]
fn there_are_enough_scripts() {
    let count = count_scripts().unwrap();
    assert!(count >= 120, "{count} scripts");
}
