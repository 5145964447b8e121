//! The kinds of charts: bars, ranges from one percentile to another, and curves.

use super::scale::Scale;
use super::svg::{Anchor, Picture};
use crate::report::number;

const WIDTH: f64 = 760.0;
const NAMES: f64 = 190.0;
const STEP: f64 = 26.0;
const TOP: f64 = 58.0;

/// Somebody with a number, or several.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) class: String,
    pub(super) numbers: Vec<f64>,
}

/// One bar for each, as long as its first number.
pub(super) fn bars(title: &str, axis: &str, lines: &[Line]) -> String {
    let (left, right) = (NAMES, WIDTH - 90.0);
    let most = lines.iter().map(|line| line.numbers[0]).fold(f64::MIN_POSITIVE, f64::max);
    let mut picture = framed(title, axis, lines.len());
    for (place, line) in (0_u32..).zip(lines) {
        let y = TOP + f64::from(place) * STEP;
        let length = line.numbers[0] / most * (right - left);
        picture.text("", (left - 10.0, y + 14.0), Anchor::End, &line.name);
        picture.bar(&line.class, left, y + 3.0, length, STEP - 10.0);
        let end = (left + length + 6.0, y + 14.0);
        picture.text("small", end, Anchor::Start, &number(line.numbers[0]));
    }
    picture.finish(title)
}

/// For each a line from its first to its third number, a dot at the second and a stroke at the
/// fourth: p10, p50, p90 and p99, on a logarithmic scale.
pub(super) fn ranges(title: &str, axis: &str, lines: &[Line]) -> String {
    let all = lines.iter().flat_map(|line| line.numbers.iter().copied());
    let scale = Scale::over(all, NAMES, WIDTH - 40.0);
    let mut picture = framed(title, axis, lines.len() + 1);
    let bottom = TOP + f64::from(u32::try_from(lines.len()).unwrap_or(0)) * STEP;
    for (tick, name) in scale.ticks() {
        let x = scale.place(tick);
        picture.line("grid", (x, TOP), (x, bottom), 1.0);
        picture.text("small", (x, bottom + 16.0), Anchor::Middle, &name);
    }
    for (place, line) in (0_u32..).zip(lines) {
        let y = TOP + f64::from(place) * STEP + STEP / 2.0;
        let at = |n: usize| scale.place(line.numbers[n]);
        picture.text("", (NAMES - 10.0, y + 4.0), Anchor::End, &line.name);
        picture.line(&line.class, (at(0), y), (at(2), y), 4.0);
        picture.line(&line.class, (at(2), y), (at(3), y), 1.0);
        picture.line(&line.class, (at(3), y - 6.0), (at(3), y + 6.0), 2.0);
        picture.dot(&line.class, (at(1), y));
    }
    picture.finish(title)
}

fn framed(title: &str, axis: &str, lines: usize) -> Picture {
    let height = TOP + f64::from(u32::try_from(lines).unwrap_or(0)) * STEP + 16.0;
    let mut picture = Picture::new(WIDTH, height);
    picture.text("title", (20.0, 26.0), Anchor::Start, title);
    picture.text("small", (20.0, 45.0), Anchor::Start, axis);
    picture
}

/// One small chart of curves.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) across: String,
    pub(super) up: String,
    pub(super) curves: Vec<Curve>,
}

/// Points of one contender: how many, and what it cost.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) class: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Several charts of curves, two in a row, both scales logarithmic.
pub(super) fn panels(title: &str, panels: &[Panel]) -> String {
    const WIDE: f64 = 430.0;
    const HIGH: f64 = 300.0;
    let rows = f64::from(u32::try_from(panels.len().div_ceil(2)).unwrap_or(0));
    let mut picture = Picture::new(2.0 * WIDE, 40.0 + rows * HIGH);
    picture.text("title", (20.0, 26.0), Anchor::Start, title);
    for (n, panel) in (0_u32..).zip(panels) {
        let (left, top) = (f64::from(n % 2) * WIDE, 40.0 + f64::from(n / 2) * HIGH);
        draw(&mut picture, panel, left, top);
    }
    picture.finish(title)
}

fn draw(picture: &mut Picture, panel: &Panel, left: f64, top: f64) {
    let points = || panel.curves.iter().flat_map(|curve| curve.points.iter().copied());
    let (start, end) = (left + 78.0, left + 290.0);
    let (floor, ceiling) = (top + 240.0, top + 50.0);
    let across = Scale::over(points().map(|point| point.0), start, end);
    let up = Scale::over(points().map(|point| point.1), floor, ceiling);
    picture.text("", (left + 20.0, top + 22.0), Anchor::Start, &panel.title);
    picture.text("small", (left + 20.0, top + 38.0), Anchor::Start, &panel.up);
    picture.text("small", (f64::midpoint(start, end), floor + 36.0), Anchor::Middle, &panel.across);
    for (tick, name) in up.ticks() {
        let y = up.place(tick);
        picture.line("grid", (start, y), (end, y), 1.0);
        picture.text("small", (start - 8.0, y + 4.0), Anchor::End, &name);
    }
    for (tick, name) in across.ticks() {
        let x = across.place(tick);
        picture.line("axis", (x, floor), (x, floor + 5.0), 1.0);
        picture.text("small", (x, floor + 19.0), Anchor::Middle, &name);
    }
    for (place, curve) in (0_u32..).zip(&panel.curves) {
        let at = |point: &(f64, f64)| (across.place(point.0), up.place(point.1));
        let points: Vec<(f64, f64)> = curve.points.iter().map(at).collect();
        picture.path(&curve.class, &points);
        for point in points {
            picture.dot(&curve.class, point);
        }
        let y = ceiling + 8.0 + f64::from(place) * 18.0;
        picture.bar(&curve.class, end + 12.0, y - 8.0, 8.0, 8.0);
        picture.text("small", (end + 26.0, y), Anchor::Start, &curve.name);
    }
}
