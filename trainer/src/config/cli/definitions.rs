//! Flags of `trainer completions` and `trainer man`, which tell the definitions of all flags to other programs.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Flags of `trainer completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// A shell that completes words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// `trainer completions bash > ~/.local/share/bash-completion/completions/trainer`
    Bash,
    /// `trainer completions zsh > DIR/_trainer`, where DIR is in `$fpath`
    Zsh,
    /// `trainer completions fish > ~/.config/fish/completions/trainer.fish`
    Fish,
}

/// Flags of `trainer man`.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Directory for the pages, such as ~/.local/share/man/man1.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Write one page of Markdown, flags.md, instead [default: off]
    #[arg(long)]
    pub markdown: bool,
}
