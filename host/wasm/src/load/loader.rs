//! Turns the bytes of a file into a plugin that can serve.
//!
//! A loader takes bytes and grants and returns a plugin, or a rejection. Vetting and compiling do not depend on grants, so a changed grant
//! costs only one call of `setup`. The loader does not decide which of several plugins serves.

use std::borrow::Cow;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oarlock_contract::limits::PluginLimits;
use oarlock_core::plugin::grant::{Grant, missing};
use oarlock_core::plugin::lookup::PluginInfo;
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::proposal::Registration;
use wasmtime::component::Component;

use crate::load::cache::{Cache, EntryKind};
use crate::load::helper_process::{CompileWith, Compiling};
use crate::load::inspect::manifest_refused;
use crate::memory::MemoryShares;
use crate::plugin::{Compiled, Plugin, Vetted};
use crate::rejection::{Rejection, causes};
use crate::run::bindings::ActionPre;
use crate::run::call_error::CallError;
use crate::run::engine::Engine;
use crate::run::guest::PluginSettings;
use crate::run::log_budget::LogBudget;
use crate::run::peak_use::PeakUse;
use crate::run::warm_instance::{CallContext, setup};

/// The loader that turns files into plugins.
pub(crate) struct Loader {
    pub engine: Arc<Engine>,
    pub cache: Option<Cache>,
    pub compile_with: CompileWith,
    pub caps: PluginLimits,
    pub grant_all: bool,
    pub wall_timeout: Option<Duration>,
    pub memory: MemoryShares,
}

/// The most effort that loading may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A moment: the loader takes earlier results from the cache.
    Cache,
    /// Minutes: the loader runs a helper process.
    Helper,
}

/// The location of compiled code.
enum CompiledCode {
    /// A file of the cache.
    File(PathBuf),
    /// Memory, if there is no cache.
    Memory(Vec<u8>),
}

/// The result of loading a component with the current grants.
pub(crate) enum Admission {
    /// The plugin can serve.
    Ready(Arc<Plugin>),
    /// The plugin requests more than its grant allows. The grant lacks these lines.
    Awaiting(Vec<String>),
    /// The plugin is not used.
    Rejected(Rejection),
    /// The plugin trapped too often, so the version before serves for some time. The text says so.
    Quarantined(String),
}

impl Loader {
    /// Vets the interface of a component. Returns `None` if this takes more than `effort`.
    pub(crate) fn vet(&self, bytes: &[u8], digest: &str, effort: Effort) -> Option<Result<Vetted, Rejection>> {
        let cached = self.cache.as_ref().and_then(|cache| {
            cache.failure(digest).map(Err).or_else(|| cache.load(digest, EntryKind::Manifest).map(Ok))
        });
        if cached.is_none() && effort == Effort::Cache {
            return None;
        }
        let manifest = cached.unwrap_or_else(|| self.vet_anew(bytes, digest));
        Some(manifest.and_then(|manifest| {
            let manifest = Manifest::parse(&manifest).map_err(|error| manifest_refused(&error))?;
            Ok(Vetted { digest: digest.to_owned(), manifest: Arc::new(manifest) })
        }))
    }

    fn vet_anew(&self, bytes: &[u8], digest: &str) -> Result<Vec<u8>, Rejection> {
        self.memory.check_file(bytes.len() as u64)?;
        let vetted = self.compile_with.vet(bytes, self.memory);
        if let Some(cache) = &self.cache {
            match &vetted {
                Ok(manifest) => cache.store(digest, EntryKind::Manifest, manifest),
                Err(rejection) => cache.failed(digest, rejection),
            }
        }
        vetted
    }

    /// Compiles a vetted component, or takes its code from the cache. Returns `None` if this takes more than `effort`.
    pub(crate) fn compile(
        &self,
        vetted: &Vetted,
        bytes: &[u8],
        effort: Effort,
    ) -> Option<Result<Arc<Compiled>, Rejection>> {
        let cached = self.cache.as_ref().and_then(|cache| cache.path(&vetted.digest, EntryKind::Code));
        let cached = cached.and_then(|path| self.deserialize(&CompiledCode::File(path)).ok());
        if cached.is_none() && effort == Effort::Cache {
            return None;
        }
        let component = cached.map_or_else(|| self.compile_anew(vetted, bytes), Ok);
        Some(component.and_then(|component| self.link(vetted, &component)))
    }

    fn compile_anew(&self, vetted: &Vetted, bytes: &[u8]) -> Result<Component, Rejection> {
        let code = match &self.cache {
            None => {
                let mut code = Vec::new();
                self.compile_with.compile(&self.compiling(bytes), &mut code).map(|()| CompiledCode::Memory(code))
            }
            Some(cache) => {
                let write = |file: &mut File| self.compile_with.compile(&self.compiling(bytes), file);
                cache.write(&vetted.digest, EntryKind::Code, write).map(CompiledCode::File)
            }
        };
        let component = code.and_then(|code| {
            self.deserialize(&code).map_err(|error| {
                let why = causes(error.as_ref());
                Rejection::new("CompileFailed", format!("the compiled code cannot be loaded: {why}"))
            })
        });
        if let (Err(rejection), Some(cache)) = (&component, &self.cache) {
            cache.failed(&vetted.digest, rejection);
        }
        component
    }

    fn compiling<'a>(&'a self, bytes: &'a [u8]) -> Compiling<'a> {
        Compiling { engine: &self.engine.wasm, bytes, memory: self.memory }
    }

    /// Loads compiled code. A file is mapped, so that its code is not twice in memory.
    #[allow(unsafe_code, reason = "the code comes from our own compiler: from the helper just now, or authenticated")]
    fn deserialize(&self, code: &CompiledCode) -> wasmtime::Result<Component> {
        // Safety: `precompile_component` of this program returned the code, see the two callers. A file of the cache is only replaced as a
        // whole and never changed.
        unsafe {
            match code {
                CompiledCode::File(path) => Component::deserialize_file(&self.engine.wasm, path),
                CompiledCode::Memory(code) => Component::deserialize(&self.engine.wasm, code),
            }
        }
    }

    fn link(&self, vetted: &Vetted, component: &Component) -> Result<Arc<Compiled>, Rejection> {
        let refused = |error: wasmtime::Error| {
            let sentence =
                format!("it does not fit this host: {}; build it with the SDK of this version", causes(error.as_ref()));
            Rejection::new("DoesNotLink", sentence)
        };
        let pre = self.engine.linker.instantiate_pre(component).map_err(refused)?;
        let pre = ActionPre::new(pre).map_err(refused)?;
        Ok(Arc::new(Compiled { digest: vetted.digest.clone(), manifest: vetted.manifest.clone(), pre }))
    }

    /// Returns the grant of a plugin, if it has one.
    fn grant_of<'a>(&self, manifest: &Manifest, grants: &'a [Grant]) -> Option<Cow<'a, Grant>> {
        let grant = grants.iter().find(|grant| grant.name == manifest.name);
        if self.grant_all { Some(Cow::Owned(everything(manifest, grant))) } else { grant.map(Cow::Borrowed) }
    }

    /// Returns the lines that the grant of a component lacks.
    pub(crate) fn missing_lines(&self, vetted: &Vetted, grants: &[Grant]) -> Vec<String> {
        missing(&vetted.manifest, self.grant_of(&vetted.manifest, grants).as_deref(), &vetted.digest)
    }

    /// Compares the requests of a component with its grant and calls `setup`.
    pub(crate) async fn admit(&self, compiled: &Arc<Compiled>, grants: &[Grant]) -> Admission {
        let manifest = &compiled.manifest;
        let grant = self.grant_of(manifest, grants);
        let lines = missing(manifest, grant.as_deref(), &compiled.digest);
        let Some(grant) = grant.filter(|_| lines.is_empty()) else { return Admission::Awaiting(lines) };
        let config = grant.config();
        if let Err(why) = manifest.check_config(&config) {
            let sentence = format!("its configuration is invalid: {why}; correct `config` of its grant");
            return Admission::Rejected(Rejection::new("ConfigInvalid", sentence));
        }
        let limits = PluginLimits::of(&manifest.limits, &grant.limits, &self.caps);
        if let Err(rejection) = self.memory.check_instance(limits.memory_mib) {
            return Admission::Rejected(rejection);
        }
        let log = LogBudget::full();
        let settings = PluginSettings {
            manifest: manifest.clone(),
            grant: Grant::clone(&grant),
            limits,
            config,
            log,
            peaks: PeakUse::default(),
        };
        let context = CallContext {
            engine: self.engine.clone(),
            pre: compiled.pre.clone(),
            settings: Arc::new(settings),
            wall_timeout: self.wall_timeout,
        };
        let registration = match registered(&context, manifest).await {
            Ok(registration) => registration,
            Err(rejection) => return Admission::Rejected(rejection),
        };
        let info = PluginInfo {
            manifest: Manifest::clone(manifest),
            grant: grant.into_owned(),
            registration,
            digest: compiled.digest.clone(),
        };
        let (compiled, info, context) = (compiled.clone(), Arc::new(info), Arc::new(context));
        Admission::Ready(Arc::new(Plugin { compiled, info, context, traps: Arc::default() }))
    }
}

/// Returns a grant of all requests of a manifest, with the limits and the configuration of the plugin's grant.
fn everything(manifest: &Manifest, grant: Option<&Grant>) -> Grant {
    let grant = grant.cloned().unwrap_or_default();
    Grant { limits: grant.limits, config: grant.config, ..Grant::of_all(manifest) }
}

async fn registered(context: &CallContext, manifest: &Manifest) -> Result<Registration, Rejection> {
    match setup(context).await {
        Ok(Ok(registration)) => {
            let checked = registration.check(manifest);
            checked.map_err(|why| Rejection::new("RegistrationRefused", why)).map(|()| registration)
        }
        Ok(Err(failure)) => {
            let sentence = format!("its `setup` failed ({}): {}", failure.reason, failure.message);
            Err(Rejection { retryable: failure.retryable, ..Rejection::new("SetupFailed", sentence) })
        }
        Err(CallError::Trap(trap)) => Err(Rejection::new("SetupTrapped", format!("{}: {}", trap.reason, trap.message))),
        Err(CallError::Busy) => Err(Rejection::for_now("PluginsBusy", "the host has no room for another instance now")),
    }
}
