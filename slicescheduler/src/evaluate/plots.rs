//! Pictures as SVG: lines over a rate, bars by length of slice.

use std::io;

use plotters::prelude::{
    ChartBuilder, Color, DrawingBackend, IntoDrawingArea, IntoLogRange, LineSeries, PathElement, RGBColor, Rectangle,
    SVGBackend, SeriesLabelPosition, WHITE,
};

/// Size of a picture, in pixels.
const SIZE: (u32, u32) = (560, 340);

/// Colours that people with any colour vision can tell apart (Paul Tol, "Colour schemes", 2021), ours first.
const COLOURS: [RGBColor; 12] = [
    RGBColor(0xcc, 0x33, 0x11),
    RGBColor(0x33, 0x22, 0x88),
    RGBColor(0x88, 0xcc, 0xee),
    RGBColor(0x44, 0xaa, 0x99),
    RGBColor(0x11, 0x77, 0x33),
    RGBColor(0x99, 0x99, 0x33),
    RGBColor(0xdd, 0xcc, 0x77),
    RGBColor(0xcc, 0x66, 0x77),
    RGBColor(0x88, 0x22, 0x55),
    RGBColor(0xaa, 0x44, 0x99),
    RGBColor(0x77, 0x77, 0x77),
    RGBColor(0x00, 0x77, 0xbb),
];

/// A line of a picture.
pub(super) struct Line<'a> {
    /// What the legend says.
    pub(super) name: &'a str,
    /// Points, ascending.
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines over a logarithmic axis. The first line is drawn last and thicker.
pub(super) fn lines(x: &str, y: &str, lines: &[Line<'_>]) -> io::Result<String> {
    let all = || lines.iter().flat_map(|line| &line.points);
    let (low, high) = all().fold((f64::MAX, 0.0_f64), |(low, high), point| (low.min(point.0), high.max(point.0)));
    let top = all().map(|point| point.1).fold(0.0, f64::max) * 1.05;
    if high <= 0.0 || top <= 0.0 {
        return Ok(String::new());
    }
    let (low, high) = if low < high { (low, high) } else { (low / 1.5, high * 1.5) };
    let mut svg = String::new();
    draw(&mut svg, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(66)
            .build_cartesian_2d((low..high).log_scale(), 0.0..top)?;
        chart.configure_mesh().x_desc(x).y_desc(y).light_line_style(WHITE).y_label_formatter(&|y| short(*y)).draw()?;
        for (index, line) in lines.iter().enumerate().rev() {
            let style = COLOURS[index % COLOURS.len()].stroke_width(if index == 0 { 3 } else { 1 });
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(2))?
                .label(line.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 14, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.8))
            .label_font(("sans-serif", 11))
            .draw()?;
        Ok(())
    })?;
    Ok(svg)
}

/// Two nested bars for each class: a whole and a part of it.
pub(super) fn nested_bars(x: &str, y: &str, classes: &[(String, f64, f64)]) -> io::Result<String> {
    let top = classes.iter().map(|class| class.1).fold(0.0, f64::max) * 1.05;
    if classes.is_empty() || top <= 0.0 {
        return Ok(String::new());
    }
    let mut svg = String::new();
    let name = |at: &f64| classes.get(at.floor().max(0.0) as usize).map_or_else(String::new, |class| class.0.clone());
    draw(&mut svg, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(66)
            .build_cartesian_2d(0.0..classes.len() as f64, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(classes.len())
            .x_label_formatter(&name)
            .x_desc(x)
            .y_desc(y)
            .light_line_style(WHITE)
            .y_label_formatter(&|y| short(*y))
            .draw()?;
        for (part, colour) in [(false, RGBColor(0xc9, 0xd1, 0xd6)), (true, COLOURS[0])] {
            chart.draw_series(classes.iter().enumerate().map(|(index, (_, whole, recovered))| {
                let height = if part { *recovered } else { *whole };
                let left = index as f64;
                Rectangle::new([(left + 0.1, 0.0), (left + 0.9, height)], colour.filled())
            }))?;
        }
        Ok(())
    })?;
    Ok(svg)
}

type Area<'a> = plotters::drawing::DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Failure<'a> = plotters::drawing::DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn draw(svg: &mut String, picture: impl FnOnce(&Area<'_>) -> Result<(), Failure<'static>>) -> io::Result<()> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| picture(&area)).and_then(|()| area.present());
    drawn.map_err(|error| io::Error::other(error.to_string()))
}

fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.1}M", value / 1e6),
        size if size >= 1e3 => format!("{:.0}k", value / 1e3),
        size if size >= 10.0 || size == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_name_their_lines_and_need_nothing_else() {
        let line = Line { name: "slice-fill", points: vec![(0.5, 10.0), (1.0, 20.0)] };
        let svg = lines("rate", "tokens/s", &[line]).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("slice-fill") && svg.contains("tokens/s"));
        let bars = nested_bars("length", "s", &[("1 ms".into(), 2.0, 1.0)]).unwrap();
        assert!(bars.contains("<rect") && bars.contains("1 ms"));
    }

    #[test]
    fn nothing_is_no_picture() {
        assert_eq!(lines("x", "y", &[]).unwrap(), "");
        assert_eq!(nested_bars("x", "y", &[]).unwrap(), "");
        let line = Line { name: "alone", points: vec![(1.0, 5.0)] };
        assert!(lines("x", "y", &[line]).unwrap().contains("alone"));
    }
}
