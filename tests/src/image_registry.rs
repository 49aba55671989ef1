//! A registry in memory on a thread of its own: in virtual time nobody waits for the network, and copies are made by the real one.

use std::net::Ipv4Addr;
use std::thread::JoinHandle;

use anyhow::Context as _;
use oarlock::images::ExportRegistry;
use oarlock_sim::ImageRegistry;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

/// A registry that ends with this.
pub struct LocalRegistry {
    /// `127.0.0.1:port`.
    pub address: String,
    /// Its images.
    pub images: ImageRegistry,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl LocalRegistry {
    /// Begins to serve.
    ///
    /// # Errors
    /// If there is no port or thread for it.
    pub fn start() -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.to_string();
        let (images, stop) = (ImageRegistry::default(), CancellationToken::new());
        let (served, stopped) = (images.clone(), stop.clone());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    _failed = served.serve(listener) => {}
                    () = stopped.cancelled() => {}
                }
            });
        });
        Ok(Self { address, images, stop, thread: Some(thread) })
    }

    /// All images are pulled from it, and exported to it.
    pub fn of_host(&self) -> ExportRegistry {
        ExportRegistry::in_memory(self.address.clone())
    }
}

impl Drop for LocalRegistry {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}
