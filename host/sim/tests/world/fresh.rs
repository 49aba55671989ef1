//! A simulated cluster on a new in-memory API.

use kube::Client;
use oarlock_sim::world::{Seedbed, World, WorldOptions};
use oarlock_sim::{Cluster, Options};

/// Returns a client, the simulated cluster, and the creator of workloads in the namespace `demo`.
pub(crate) async fn fresh(seed: u64) -> (Client, World, Seedbed) {
    let options = Options { seed, ..Options::default() };
    let clock = options.clock.clone();
    let client = Client::new(Cluster::new(options).service(), "demo");
    let world = World::start(client.clone(), WorldOptions::new(seed, clock)).await.unwrap();
    let seedbed = Seedbed::namespace(client.clone(), "demo").await.unwrap();
    (client, world, seedbed)
}
