//! Colour scales: each palette has a scale around 0 and a scale from 0 upwards. Colour-blind people can
//! distinguish the ends of a scale too, and a sign or a shade in the cell gives the same information without
//! colour.

use ratatui::style::Color;

use llama_trace_picture::Paper;

/// Red, green, blue.
pub type Rgb = (u8, u8, u8);

/// A pair of colour scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Palette {
    /// Blue, white, red (ColorBrewer's RdBu); viridis, or on light paper white to blue.
    #[default]
    RedBlue,
    /// Purple, white, orange (ColorBrewer's PuOr); cividis, or on light paper white to brown.
    PurpleOrange,
    /// Greys, for print.
    Grey,
}

const RED_BLUE: [Rgb; 7] = [
    (33, 102, 172),
    (103, 169, 207),
    (209, 229, 240),
    (247, 247, 247),
    (253, 219, 199),
    (239, 138, 98),
    (178, 24, 43),
];

const PURPLE_ORANGE: [Rgb; 7] = [
    (84, 39, 136),
    (153, 142, 195),
    (216, 218, 235),
    (247, 247, 247),
    (254, 224, 182),
    (241, 163, 64),
    (179, 88, 6),
];

/// Both ends have the same colour; the signs in the cells distinguish them.
const GREY_BOTH: [Rgb; 3] = [(60, 60, 60), (245, 245, 245), (60, 60, 60)];

const VIRIDIS: [Rgb; 9] = [
    (68, 1, 84),
    (71, 44, 122),
    (59, 81, 139),
    (44, 113, 142),
    (33, 144, 141),
    (39, 173, 129),
    (92, 200, 99),
    (170, 220, 50),
    (253, 231, 37),
];

const CIVIDIS: [Rgb; 9] = [
    (0, 32, 77),
    (0, 51, 111),
    (57, 72, 107),
    (87, 93, 109),
    (112, 113, 115),
    (138, 134, 120),
    (166, 157, 117),
    (212, 193, 98),
    (255, 234, 70),
];

const BLUES: [Rgb; 5] = [(247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107)];
const BROWNS: [Rgb; 5] = [(255, 245, 235), (253, 208, 162), (253, 141, 60), (217, 72, 1), (127, 39, 4)];
const TO_WHITE: [Rgb; 2] = [(40, 40, 40), (250, 250, 250)];
const TO_BLACK: [Rgb; 2] = [(250, 250, 250), (20, 20, 20)];

impl Palette {
    /// The colour of a value between −1 and 1.
    pub fn diverging(self, share: f64) -> Rgb {
        let stops: &[Rgb] = match self {
            Self::RedBlue => &RED_BLUE,
            Self::PurpleOrange => &PURPLE_ORANGE,
            Self::Grey => &GREY_BOTH,
        };
        between(stops, (share + 1.0) / 2.0)
    }

    /// The colour of a value between 0 and 1: the larger, the more contrast to the background.
    pub fn sequential(self, share: f64, paper: Paper) -> Rgb {
        let stops: &[Rgb] = match (self, paper) {
            (Self::RedBlue, Paper::Dark) => &VIRIDIS,
            (Self::RedBlue, Paper::Light) => &BLUES,
            (Self::PurpleOrange, Paper::Dark) => &CIVIDIS,
            (Self::PurpleOrange, Paper::Light) => &BROWNS,
            (Self::Grey, Paper::Dark) => &TO_WHITE,
            (Self::Grey, Paper::Light) => &TO_BLACK,
        };
        between(stops, share)
    }

    /// Colours for a terminal with 16 colours: for a scale from 0 upwards, for values below 0, and for values above 0.
    pub fn named(self) -> [Color; 3] {
        match self {
            Self::RedBlue => [Color::Green, Color::Blue, Color::Red],
            Self::PurpleOrange => [Color::Yellow, Color::Magenta, Color::Yellow],
            Self::Grey => [Color::Reset; 3],
        }
    }
}

fn between(stops: &[Rgb], share: f64) -> Rgb {
    let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
    let at = share * (stops.len() - 1) as f64;
    let low = (at.floor() as usize).min(stops.len() - 2);
    let rest = at - low as f64;
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * rest).round() as u8;
    let (a, b) = (stops[low], stops[low + 1]);
    (mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// The nearest of the 240 fixed colours of a 256-colour terminal: a cube with 6 levels per channel, and 24 greys.
pub fn indexed((r, g, b): Rgb) -> Color {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let level = |value: u8| (0..6_u8).min_by_key(|&i| LEVELS[usize::from(i)].abs_diff(value)).unwrap_or(0);
    let grey = ((u16::from(r) + u16::from(g) + u16::from(b)) / 3).saturating_sub(3) / 10;
    let grey = grey.min(23) as u8;
    let shade = 8 + 10 * grey;
    let (i, j, k) = (level(r), level(g), level(b));
    let distance = |(x, y, z): Rgb| {
        [(x, r), (y, g), (z, b)].iter().map(|&(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum::<u32>()
    };
    let cube = (LEVELS[usize::from(i)], LEVELS[usize::from(j)], LEVELS[usize::from(k)]);
    if distance((shade, shade, shade)) < distance(cube) {
        Color::Indexed(232 + grey)
    } else {
        Color::Indexed(16 + 36 * i + 6 * j + k)
    }
}

/// Returns whether black text is easier to read on this colour than white text.
pub fn is_light((r, g, b): Rgb) -> bool {
    u32::from(r) * 299 + u32::from(g) * 587 + u32::from(b) * 114 > 140_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_white_and_the_ends_are_blue_and_red() {
        let palette = Palette::RedBlue;
        assert_eq!(palette.diverging(0.0), (247, 247, 247));
        assert_eq!((palette.diverging(-1.0), palette.diverging(1.0)), (RED_BLUE[0], RED_BLUE[6]));
        let sequential = |share| palette.sequential(share, Paper::Dark);
        assert_eq!((sequential(f64::NAN), sequential(9.0)), (VIRIDIS[0], VIRIDIS[8]));
    }

    /// The two ends of a scale also differ for eyes that do not distinguish red, green and yellow.
    #[test]
    fn the_ends_of_a_scale_differ_without_red_and_green() {
        // Viénot, Brettel and Mollon: the colours that a dichromat without the cones for red sees.
        let seen = |(r, g, b): Rgb| {
            let [r, g, b] = [r, g, b].map(|part| (f64::from(part) / 255.0).powf(2.2));
            [0.112_38 * r + 0.887_62 * g, 0.112_38 * r + 0.887_62 * g, 0.004 * r - 0.004 * g + b]
        };
        let differ = |a: Rgb, b: Rgb| {
            let (a, b) = (seen(a), seen(b));
            a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) > 0.15
        };
        for palette in [Palette::RedBlue, Palette::PurpleOrange] {
            assert!(differ(palette.diverging(-1.0), palette.diverging(1.0)), "{palette:?}");
        }
        for palette in [Palette::RedBlue, Palette::PurpleOrange, Palette::Grey] {
            for paper in [Paper::Dark, Paper::Light] {
                assert!(differ(palette.sequential(0.0, paper), palette.sequential(1.0, paper)));
            }
        }
    }

    #[test]
    fn fixed_colours_are_the_nearest() {
        assert_eq!(indexed((255, 0, 0)), Color::Indexed(196));
        assert_eq!(indexed((128, 128, 128)), Color::Indexed(244));
        assert_eq!(indexed((0, 0, 0)), Color::Indexed(16));
    }
}
