//! What the console can show.

use console::Term;

/// Columns of a console that does not tell, such as a pipe to a launcher.
const PLAIN_WIDTH: usize = 80;

/// Width and colour of stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsoleLook {
    /// Columns.
    pub width: usize,
    /// Whether colour is welcome: on a terminal, unless `NO_COLOR` is set.
    pub is_colored: bool,
}

impl ConsoleLook {
    /// A console of which nothing is known.
    pub fn plain() -> Self {
        Self {
            width: PLAIN_WIDTH,
            is_colored: false,
        }
    }

    /// That of stdout. A launcher may give its ranks a terminal without a size, whose text goes into a file: that one is plain.
    pub fn of_stdout() -> Self {
        match Term::stdout().size_checked() {
            Some((_, columns)) if columns > 0 => Self {
                width: usize::from(columns),
                is_colored: console::colors_enabled(),
            },
            _ => Self::plain(),
        }
    }
}
