//! Turns the bytes of a file into a plugin that can serve.
//!
//! Takes bytes and grants; yields a plugin, or a rejection. Vetting and compiling do not depend on grants, so a changed
//! grant costs one call of `setup`. May not decide which of several plugins serves.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::plugin::grant::{Grant, missing};
use oarlock_core::plugin::lookup::PluginInfo;
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::proposal::{Registration, RelationKey};
use wasmtime::component::Component;

use crate::load::cache::Cache;
use crate::load::compile::{CompileWith, compile};
use crate::load::inspect::Inspection;
use crate::load::vet;
use crate::plugin::{Compiled, Plugin};
use crate::rejection::{Rejection, causes};
use crate::run::bindings::ActionPre;
use crate::run::call_error::CallError;
use crate::run::engine::Engine;
use crate::run::guest::PluginSettings;
use crate::run::limits::PluginLimits;
use crate::run::plugin_log::LogBudget;
use crate::run::warm_instance::{CallContext, setup};

/// Turns files into plugins.
pub(crate) struct Loader {
    pub engine: Arc<Engine>,
    pub cache: Option<Cache>,
    pub compile_with: CompileWith,
    pub caps: PluginLimits,
    pub wall_timeout: Option<Duration>,
}

/// The result of loading a component under the present grants.
pub(crate) enum Admission {
    /// It can serve.
    Ready(Arc<Plugin>),
    /// It asks for more than its grant, which lacks these lines.
    Awaiting(Vec<String>),
    /// It is not used.
    Rejected(Rejection),
}

impl Loader {
    /// Vets and compiles, or takes compiled code from the cache. Blocks its thread for up to minutes.
    pub(crate) fn prepare(&self, bytes: &[u8]) -> Result<Arc<Compiled>, Rejection> {
        let inspection = vet::check_interface(bytes)?;
        // Code in the cache was vetted whole before it was compiled.
        let cached = self.cache.as_ref().and_then(|cache| cache.load(&inspection.digest));
        if let Some(component) = cached.and_then(|code| self.deserialize(&code).ok()) {
            return self.link(inspection, &component);
        }
        vet::check_code(bytes)?;
        let code = compile(&self.compile_with, &self.engine.wasm, bytes)?;
        let component = self.deserialize(&code).map_err(|error| {
            Rejection::new("CompileFailed", format!("the compiled code cannot be loaded: {}", causes(error.as_ref())))
        })?;
        if let Some(cache) = &self.cache {
            cache.store(&inspection.digest, &code);
        }
        self.link(inspection, &component)
    }

    #[allow(unsafe_code, reason = "the code comes from our own compiler: from the helper just now, or authenticated")]
    fn deserialize(&self, code: &[u8]) -> wasmtime::Result<Component> {
        // Safety: `precompile_component` of this program returned `code`, see the two callers.
        unsafe { Component::deserialize(&self.engine.wasm, code) }
    }

    fn link(&self, inspection: Inspection, component: &Component) -> Result<Arc<Compiled>, Rejection> {
        let refused = |error: wasmtime::Error| {
            let sentence =
                format!("it does not fit this host: {}; build it with the SDK of this version", causes(error.as_ref()));
            Rejection::new("DoesNotLink", sentence)
        };
        let pre = self.engine.linker.instantiate_pre(component).map_err(refused)?;
        let pre = ActionPre::new(pre).map_err(refused)?;
        let manifest = inspection.manifest.ok_or_else(|| Rejection::new("ManifestMissing", "it has no manifest"))?;
        Ok(Arc::new(Compiled { digest: inspection.digest, manifest: Arc::new(manifest), pre }))
    }

    /// Compares a component's requests with its grant and calls `setup`.
    pub(crate) async fn admit(&self, compiled: &Arc<Compiled>, grants: &[Grant]) -> Admission {
        let manifest = &compiled.manifest;
        let grant = grants.iter().find(|grant| grant.name == manifest.name);
        let lines = missing(manifest, grant, &compiled.digest);
        let Some(grant) = grant.filter(|_| lines.is_empty()) else { return Admission::Awaiting(lines) };
        let config = grant.config();
        if let Err(why) = manifest.check_config(&config) {
            let sentence = format!("its configuration is invalid: {why}; correct `config` of its grant");
            return Admission::Rejected(Rejection::new("ConfigInvalid", sentence));
        }
        let limits = PluginLimits::of(&manifest.limits, &grant.limits, &self.caps);
        let log = LogBudget::full();
        let settings = PluginSettings { manifest: manifest.clone(), grant: grant.clone(), limits, config, log };
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
            grant: grant.clone(),
            registration,
            digest: compiled.digest.clone(),
        };
        let (compiled, info, context) = (compiled.clone(), Arc::new(info), Arc::new(context));
        Admission::Ready(Arc::new(Plugin { compiled, info, context }))
    }
}

async fn registered(context: &CallContext, manifest: &Manifest) -> Result<Registration, Rejection> {
    match setup(context).await {
        Ok(Ok(registration)) => {
            let checked = check_registration(&registration, manifest);
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

/// A plugin sees related objects only of kinds, and by fields, that its manifest declares.
fn check_registration(registration: &Registration, manifest: &Manifest) -> Result<(), String> {
    for (at, relation) in registration.relations.iter().enumerate() {
        let name = &relation.name;
        if registration.relations.iter().take(at).any(|earlier| earlier.name == *name) {
            return Err(format!("`setup` declares relation {name} twice; give each another name"));
        }
        let kind = &relation.kind;
        if !manifest.declares_kind(kind) {
            return Err(format!(
                "relation {name} is about {} {}; add it to `reads` of the manifest",
                kind.api_version, kind.kind
            ));
        }
        if let RelationKey::Field(pointer) = &relation.by
            && !manifest.declares_read(kind, pointer)
        {
            return Err(format!(
                "relation {name} matches by {pointer} of {}; add it to `reads` of the manifest",
                kind.kind
            ));
        }
    }
    Ok(())
}
