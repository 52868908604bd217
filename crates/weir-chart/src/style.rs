//! The colours and shapes, as one style sheet for light and dark pages.

/// A colour with a variant for each colour scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    Blue,
    Red,
    Green,
    Grey,
    Amber,
}

impl Color {
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Blue => "blue",
            Self::Red => "red",
            Self::Green => "green",
            Self::Grey => "grey",
            Self::Amber => "amber",
        }
    }
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    Solid,
    Dashed,
}

impl Stroke {
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Solid => "line",
            Self::Dashed => "line dashed",
        }
    }
}

/// The style sheet of all charts. The colours come first: an area or a label overrides a part of its colour.
pub const STYLE: &str = "\
.weir-chart text{font:12px system-ui,sans-serif;fill:#57606a}\
.weir-chart .background{fill:#ffffff}.weir-chart .grid{stroke:#d0d7de;stroke-width:1}\
.weir-chart .blue{fill:#0969da;stroke:#0969da}.weir-chart .red{fill:#cf222e;stroke:#cf222e}\
.weir-chart .green{fill:#1a7f37;stroke:#1a7f37}.weir-chart .grey{fill:#656d76;stroke:#656d76}\
.weir-chart .amber{fill:#9a6700;stroke:#9a6700}\
.weir-chart .heading{font-size:18px;font-weight:600;fill:#1f2328}\
.weir-chart .title{font-size:14px;font-weight:600;fill:#1f2328}\
@media (prefers-color-scheme:dark){\
.weir-chart text{fill:#9198a1}.weir-chart .background{fill:#0d1117}.weir-chart .grid{stroke:#3d444d}\
.weir-chart .blue{fill:#58a6ff;stroke:#58a6ff}.weir-chart .red{fill:#ff7b72;stroke:#ff7b72}\
.weir-chart .green{fill:#3fb950;stroke:#3fb950}.weir-chart .grey{fill:#9198a1;stroke:#9198a1}\
.weir-chart .amber{fill:#d29922;stroke:#d29922}\
.weir-chart .heading,.weir-chart .title{fill:#f0f6fc}}\
.weir-chart .area{fill-opacity:.3;stroke-width:1.25;stroke-linejoin:round}\
.weir-chart .line{fill:none;stroke-width:1.75;stroke-linejoin:round}.weir-chart .dashed{stroke-dasharray:7 4}\
.weir-chart .mark{stroke-width:1;stroke-dasharray:4 3}\
.weir-chart .bar{fill-opacity:.65;stroke:none}.weir-chart .band{fill-opacity:.2;stroke:none}\
.weir-chart .value{fill:#656d76;fill-opacity:0}.weir-chart .value:hover{fill-opacity:.15}\
.weir-chart.spark .line,.weir-chart.spark .area{vector-effect:non-scaling-stroke}.weir-chart .place{fill:transparent}\
.weir-chart .place:hover{fill:#8884}.weir-chart .label{stroke:none}.weir-chart .middle{text-anchor:middle}.weir-chart .end,.weir-chart .narrow{text-anchor:end}\
.weir-chart .narrow{display:none}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_has_a_variant_for_dark_pages() {
        let (light, dark) = STYLE.split_once("@media (prefers-color-scheme:dark)").unwrap();
        for color in [Color::Blue, Color::Red, Color::Green, Color::Grey, Color::Amber] {
            let rule = format!(".{}{{fill:#", color.class());
            assert!(light.contains(&rule) && dark.contains(&rule), "{color:?}");
        }
    }
}
