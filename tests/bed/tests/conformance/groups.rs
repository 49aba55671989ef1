//! One test per group of scripts.

use std::sync::Arc;

use oarlock_bed::accounts::Account;
use oarlock_bed::conformance::{self, Forget, Side, Sides};
use oarlock_bed::control_plane::{self, ControlPlane, Options};
use oarlock_sim::{Cluster, Options as SimOptions};
use tokio::sync::{OnceCell, RwLock};

/// One control plane for all groups: each script has a namespace of its own. It ends with this process.
async fn real() -> &'static ControlPlane {
    static REAL: OnceCell<ControlPlane> = OnceCell::const_new();
    REAL.get_or_try_init(|| control_plane::start(Options::default())).await.unwrap()
}

/// What a server serves belongs to all groups, and some scripts add to it.
static SERVED: RwLock<()> = RwLock::const_new(());

async fn agrees(group: &str) {
    let (_alone, _shared) = match group {
        "discovery" => (Some(SERVED.write().await), None),
        _ => (None, Some(SERVED.read().await)),
    };
    report(group, &sides().await).await;
}

/// The control plane of all groups, and a fresh cluster in memory.
pub(crate) async fn sides() -> Sides {
    let real = Side { client: real().await.client(Account::Admin).await.unwrap(), forget: None };
    let cluster = Cluster::new(SimOptions::default());
    let sim = Side { client: kube::Client::new(cluster.service(), "default"), forget: None };
    Sides { real, sim }
}

async fn report(group: &str, sides: &Sides) {
    let report = conformance::run_group(group, sides).await.unwrap();
    if let Some(folder) = std::env::var_os("OARLOCK_TRANSCRIPTS") {
        let path = std::path::Path::new(&folder).join(format!("{group}.txt"));
        std::fs::write(path, &report.transcript).unwrap();
    }
    let count = report.differences.len();
    assert!(count == 0, "{count} of {} scripts differ:\n\n{}", report.scripts, report.differences.join("\n"));
}

/// On a control plane of its own, because its API server restarts.
#[tokio::test]
async fn expired() {
    let plane = Arc::new(control_plane::start(Options::default()).await.unwrap());
    let client = plane.client(Account::Admin).await.unwrap();
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
    let real = Side { client, forget: Some(forget) };
    report("expired", &Sides { real, sim: Side { client: sim, forget: Some(forget_in_memory) } }).await;
}

/// Makes the tests, and the list that the folder is compared with.
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
    assert_eq!(conformance::groups().unwrap(), tested);
}

#[test]
fn there_are_enough_scripts() {
    let count = conformance::count_scripts().unwrap();
    assert!(count >= 120, "{count} scripts");
}
