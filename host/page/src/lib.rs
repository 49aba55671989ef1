//! The page of jobs in a browser: values in, HTML and events out.
//!
//! This crate takes the views of `oarlock-view`, events and plugins as values, and returns documents and the changes between them. It has
//! the style sheet and the scripts, which the server serves ([`assets()`]). It may not read a clock, a cluster or a request, and it decides
//! nothing about a job or about rights.
//!
//! A server does this for a GET of an address: it parses the address ([`PageAddress::parse`]), checks the rights of the viewer, makes the
//! content, and sends the [`document`]. A content is one of [`list_content`], [`job_content`], [`target_content`], [`flow_content`],
//! [`log_content`], [`plugins_content`] and [`refusal_content`]. For a stream ([`StreamEvent`]) it makes the contents again after each change, and sends
//! [`PageContent::changes_since`].

mod address;
mod asset;
mod chart;
mod command_lines;
mod document_shell;
mod flow_drawing;
mod flow_page;
mod grid;
mod job_list;
mod job_page;
mod log_page;
mod login_form;
mod mark;
mod object_head;
mod page_content;
mod part_table;
mod plugin_list;
mod reason_help;
mod shell_word;
mod shown_event;
mod stream_event;
mod text_html;

pub use address::{
    JobQuery, LOG, LOGIN, LOGOUT, ListState, LogAddress, MOST_NAMESPACES, MOST_STREAMED, ObjectAddress, ObjectKind,
    PLUGINS, PageAddress, PartQuery, ROOT, STREAM, query_value,
};
pub use asset::{Asset, asset_at, assets};
pub use document_shell::{CONTENT_SECURITY_POLICY, Shell, document};
pub use flow_page::{FlowPage, flow_content};
pub use job_list::{ListedJob, ROWS, list_content};
pub use job_page::{JobPage, job_content, target_content};
pub use log_page::{ShownLog, log_content};
pub use login_form::{LoginProblem, PageRefusal, login_content, refusal_content};
pub use page_content::{Fragment, PageContent};
pub use plugin_list::{ListedPlugin, PluginObject, plugins_content};
pub use shown_event::ShownEvent;
pub use stream_event::StreamEvent;
