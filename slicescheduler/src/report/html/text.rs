//! Strings that are safe in the page, and the colours of tenants.

use std::fmt;

use crate::report::{RunRecord, Summary, figure};

/// Shows a string as text or as a quoted attribute of HTML.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                _ => "&#39;",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

/// Shows a string as a JSON string that cannot end the script element it stands in.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(self.0).map_err(|_| fmt::Error)?;
        f.write_str(&json.replace('<', "\\u003c"))
    }
}

/// All tenants of the page. A tenant's place in the list is its colour everywhere.
pub(super) struct Tenants<'a> {
    /// Their names.
    pub(super) names: Vec<&'a str>,
}

/// Hues in the style sheet, `--t0` and up.
const HUES: usize = 6;

impl<'a> Tenants<'a> {
    /// Tenants in the order of the summary, then those that only runs know.
    pub(super) fn of(summary: &'a Summary, runs: &'a [RunRecord]) -> Self {
        let mut names = figure::tenant_names(summary);
        for tenant in runs.iter().flat_map(|run| &run.tenants) {
            if !names.contains(&tenant.name.as_str()) {
                names.push(&tenant.name);
            }
        }
        Self { names }
    }

    /// A tenant's place.
    pub(super) fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| *known == name)
    }

    /// The CSS colour of the tenant at `index`: six hues, then the same hues paler.
    pub(super) fn colour(index: usize) -> String {
        let hue = index % HUES;
        match index / HUES % 3 {
            0 => format!("var(--t{hue})"),
            paler => format!("color-mix(in srgb, var(--t{hue}) {}%, var(--page))", 100 - 30 * paler),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_name_stays_text() {
        assert_eq!(Escaped("<b a=\"1\" c='2'>&amp;é").to_string(), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;é");
        assert_eq!(Quoted("</script>\"\n").to_string(), r#""\u003c/script>\"\n""#);
    }

    #[test]
    fn the_first_eighteen_tenants_have_colours_of_their_own() {
        let mut colours: Vec<_> = (0..18).map(Tenants::colour).collect();
        colours.sort();
        colours.dedup();
        assert_eq!(colours.len(), 18);
    }
}
