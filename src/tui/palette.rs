//! The two colour scales: blue, white, red around 0 (ColorBrewer's RdBu), and viridis from 0 upwards.

use ratatui::style::Color;

/// Red, green, blue.
pub type Rgb = (u8, u8, u8);

const RED_BLUE: [Rgb; 7] = [
    (33, 102, 172),
    (103, 169, 207),
    (209, 229, 240),
    (247, 247, 247),
    (253, 219, 199),
    (239, 138, 98),
    (178, 24, 43),
];

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

/// The colour of a value between −1 and 1.
pub fn diverging(share: f64) -> Rgb {
    between(&RED_BLUE, (share + 1.0) / 2.0)
}

/// The colour of a value between 0 and 1.
pub fn viridis(share: f64) -> Rgb {
    between(&VIRIDIS, share)
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

/// The nearest of the 240 fixed colours of a 256-colour terminal: a cube of 6 levels, and 24 greys.
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

/// Whether black text is easier to read on this colour than white.
pub fn is_light((r, g, b): Rgb) -> bool {
    u32::from(r) * 299 + u32::from(g) * 587 + u32::from(b) * 114 > 140_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_white_and_the_ends_are_blue_and_red() {
        assert_eq!(diverging(0.0), (247, 247, 247));
        assert_eq!((diverging(-1.0), diverging(1.0)), (RED_BLUE[0], RED_BLUE[6]));
        assert_eq!((viridis(f64::NAN), viridis(9.0)), (VIRIDIS[0], VIRIDIS[8]));
    }

    #[test]
    fn fixed_colours_are_the_nearest() {
        assert_eq!(indexed((255, 0, 0)), Color::Indexed(196));
        assert_eq!(indexed((128, 128, 128)), Color::Indexed(244));
        assert_eq!(indexed((0, 0, 0)), Color::Indexed(16));
    }
}
