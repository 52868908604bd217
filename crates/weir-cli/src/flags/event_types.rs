//! The flags of `weir event-types`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::api::{Consent, PageFlags};

#[derive(Debug, Clone, Subcommand)]
pub enum EventTypeCommand {
    /// List the types; with --all and --json in the form that `apply` reads
    List {
        /// Only types with this text in the name
        #[arg(long, short, value_name = "TEXT")]
        q: Option<String>,
        #[command(flatten)]
        page: PageFlags,
    },
    /// Show a type with its example and its schema
    Show {
        #[arg(value_name = "TYPE")]
        name: String,
    },
    /// Add a type, or change what is named of it
    Set {
        #[arg(value_name = "TYPE")]
        name: String,
        #[command(flatten)]
        parts: EventTypeParts,
    },
    /// Add and change types as a file says: a JSON array of types with their names
    Apply {
        /// - is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Delete the types that the file does not have
        #[arg(long)]
        delete_others: bool,
        #[command(flatten)]
        consent: Consent,
    },
    /// Delete a type; a strict server refuses its events within a second
    Delete {
        #[arg(value_name = "TYPE")]
        name: String,
        #[command(flatten)]
        consent: Consent,
    },
}

#[derive(Debug, Clone, Args)]
pub struct EventTypeParts {
    /// What the event means
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// File with the data of such an event, as JSON; - is standard input, none removes the example
    #[arg(long, value_name = "FILE")]
    pub example: Option<PathBuf>,
    /// File with the JSON Schema of the data; - is standard input, none removes the schema
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
}
