//! An in-memory image registry on its own thread, because requests over the network do not follow virtual time. The
//! production code copies the images.

use std::net::Ipv4Addr;
use std::thread::JoinHandle;

use anyhow::Context as _;
use oarlock::images::ExportRegistry;
use oarlock_sim::ImageRegistry;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

/// An image registry that stops when this value is dropped.
pub struct LocalRegistry {
    /// The address of the registry: `127.0.0.1:port`.
    pub address: String,
    /// The images in the registry.
    pub images: ImageRegistry,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl LocalRegistry {
    /// Starts the registry.
    ///
    /// # Errors
    /// If no port is free, or if the runtime cannot be built.
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

    /// Returns the settings of a host that pulls all images from this registry and exports them to it.
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
