//! Names of the settings of the screen, as options, commands of the go-to line and lines of a scene.

/// A setting of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScreenOption {
    /// The view of the step.
    View,
    /// The axis that is fixed, as with the key `a`.
    Hold,
    /// The second tensor of a comparison.
    Compare,
    /// The sampler setting that is tried in the sampler view.
    Try,
    /// The values on the token strip.
    Strip,
    /// The colour scale.
    Scale,
    /// The visible panels.
    Panels,
}

/// The value that stands for the setting with which the tracer opens.
pub const DEFAULT: &str = "default";

impl ScreenOption {
    /// All settings, in the order in which they are applied.
    pub const ALL: [Self; 7] =
        [Self::Panels, Self::View, Self::Hold, Self::Compare, Self::Try, Self::Strip, Self::Scale];

    /// The name of the option, of the command and of the line of a scene.
    pub fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Hold => "hold",
            Self::Compare => "compare",
            Self::Try => "try",
            Self::Strip => "strip",
            Self::Scale => "scale",
            Self::Panels => "panels",
        }
    }

    /// The setting of the command that a go-to line begins with, and the text after it.
    pub(super) fn in_line(line: &str) -> Option<(Self, &str)> {
        let line = line.trim_start();
        Self::ALL.into_iter().find_map(|option| {
            let rest = line.strip_prefix(option.name())?;
            let bare = option == Self::Compare && (rest.is_empty() || rest.starts_with('['));
            (rest.starts_with(' ') || bare).then(|| (option, rest.trim()))
        })
    }

    /// The title of the go-to line.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::View => " view of this step ",
            Self::Hold => " fixed axis ",
            Self::Compare => " compare with ",
            Self::Try => " try a sampler setting ",
            Self::Strip => " token strip ",
            Self::Scale => " colour scale ",
            Self::Panels => " panels ",
        }
    }

    /// What Enter does in the go-to line.
    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::View => "the view of this step",
            Self::Hold => "the axis that is fixed, by its letter",
            Self::Compare => "Enter compares it with the place on the screen",
            Self::Try => "Enter tries this sampler setting; /sampler shows what it changes",
            Self::Strip => "the values on the token strip",
            Self::Scale => "the colour scale",
            Self::Panels => "the visible panels, one or more",
        }
    }
}
