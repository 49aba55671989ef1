//! The list of the plugins: their states, rights, use of limits and bound jobs.

use maud::{Markup, html};
use oarlock_view::cut_end;

use crate::page_content::PageContent;
use crate::text_html::{line, message, name};

/// The most lines of a list that a row shows. The object has all of them.
const MOST_LINES: usize = 40;

/// A plugin of the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedPlugin {
    /// The name.
    pub name: String,
    /// The action that a job names.
    pub action: String,
    /// The version.
    pub version: String,
    /// The digest of the component, `sha256:...`.
    pub digest: String,
    /// The reason why the plugin does not serve; empty if it serves.
    pub problem: String,
    /// The parts that only its ActionPlugin has. `None` if the cluster has no ActionPlugins.
    pub object: Option<PluginObject>,
}

/// The parts of a plugin that only its ActionPlugin has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginObject {
    /// The requests of the plugin, in words.
    pub rights: Vec<String>,
    /// The lines that its grant lacks.
    pub missing: Vec<String>,
    /// The rights that the account of the host lacks, as a sentence; empty if it lacks none.
    pub host_may_not: String,
    /// The number of unfinished jobs that are bound to each version.
    pub jobs: Vec<(String, u32)>,
    /// The peak use of each limit, in percent.
    pub peaks: Vec<(String, u8)>,
    /// The last change of the serving version, as a sentence; empty if there was none.
    pub last_swap: String,
}

/// Returns the page with the plugins, in the order of the caller.
pub fn plugins_content(plugins: &[ListedPlugin]) -> PageContent {
    let html = html! {
        section id="plugins" aria-labelledby="plugins-title" {
            h1 id="plugins-title" { "Plugins" }
            p class="muted" { "The leader serves these plugins. A job names an action." }
            @if plugins.is_empty() { p class="panel empty" { "The leader serves no plugin. Give a folder to " code { "oarlock host --plugins" } "." } }
            @else {
                div class="scroll list" tabindex="0" role="group" aria-labelledby="plugins-title" {
                    table {
                        thead { tr { @for column in ["Name", "Action", "Version", "Digest", "Jobs", "State"] { th scope="col" { (column) } } } }
                        tbody { @for plugin in plugins { (row(plugin)) } }
                    }
                }
            }
        }
    };
    PageContent::new("Plugins").with("plugins", html)
}

fn row(plugin: &ListedPlugin) -> Markup {
    let jobs: u32 = plugin.object.iter().flat_map(|object| &object.jobs).map(|(_, jobs)| jobs).sum();
    html! {
        tr {
            th scope="row" { (name(&plugin.name)) }
            td { (line(&plugin.action, 60)) }
            td { (line(&plugin.version, 40)) }
            td class="digest" { code { (line(&plugin.digest, 24)) } }
            td { @if plugin.object.is_some() { (jobs) } }
            td class="wide" {
                @if plugin.problem.is_empty() { "Serves" } @else { (message(&plugin.problem)) }
                @if let Some(object) = &plugin.object { (details(&plugin.name, object)) }
            }
        }
    }
}

/// Returns the rights, the use and the versions of a plugin, which the reader opens.
fn details(plugin: &str, object: &PluginObject) -> Markup {
    let command = format!("oarlock plugin roles {plugin} | kubectl apply -f -");
    html! {
        @if !object.host_may_not.is_empty() { p { (message(&object.host_may_not)) } p { code { (line(&command, 200)) } } }
        details {
            summary { "What it may do" @if !object.missing.is_empty() { ", and what its grant lacks" } }
            @if object.rights.is_empty() { p { "Nothing." } } @else { (list("It asks for", &object.rights)) }
            @if !object.missing.is_empty() { (list("Its grant lacks", &object.missing)) }
            @if !object.peaks.is_empty() {
                h3 { "Highest use of its limits" }
                ul { @for (limit, percent) in &object.peaks { li { (line(limit, 40)) ": " (percent) " %" } } }
            }
            @if object.jobs.len() > 1 {
                h3 { "Jobs by version" }
                ul { @for (version, jobs) in &object.jobs { li { (line(version, 40)) ": " (jobs) } } }
            }
            @if !object.last_swap.is_empty() { p { (message(&object.last_swap)) } }
        }
    }
}

fn list(title: &str, lines: &[String]) -> Markup {
    let more = lines.len().saturating_sub(MOST_LINES);
    html! {
        h3 { (title) }
        ul { @for text in lines.iter().take(MOST_LINES) { li { bdi { (cut_end(&oarlock_view::escaped(text), 300)) } } } }
        @if more > 0 { p class="muted" { "And " (more) " more." } }
    }
}
