//! The list of the plugins that the leader serves.

use maud::html;

use crate::page_content::PageContent;
use crate::text_html::{line, message, name};

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
                        thead { tr { @for column in ["Name", "Action", "Version", "Digest", "State"] { th scope="col" { (column) } } } }
                        tbody {
                            @for plugin in plugins {
                                tr {
                                    th scope="row" { (name(&plugin.name)) }
                                    td { (line(&plugin.action, 60)) }
                                    td { (line(&plugin.version, 40)) }
                                    td class="digest" { code { (line(&plugin.digest, 24)) } }
                                    td class="wide" { @if plugin.problem.is_empty() { "Serves" } @else { (message(&plugin.problem)) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    PageContent::new("Plugins").with("plugins", html)
}
