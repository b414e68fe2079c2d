//! Models by name.

use slicescheduler_gmg::templates::DenseSpec;

/// The names that [`named_model`] knows.
pub const MODELS: &[&str] = &["llama2-7b", "llama2-13b", "llama3-8b", "llama3-70b", "smollm2-135m", "tiny"];

/// The dimensions of a published model, or of `tiny`, the seeded random decoder that needs no
/// download.
pub fn named_model(name: &str) -> Option<DenseSpec> {
    Some(match name {
        "llama2-7b" => DenseSpec::llama2_7b(),
        "llama2-13b" => DenseSpec::llama2_13b(),
        "llama3-8b" => DenseSpec::llama3_8b(),
        "llama3-70b" => DenseSpec::llama3_70b(),
        "smollm2-135m" => DenseSpec::smollm2_135m(),
        "tiny" => DenseSpec::tiny(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_is_a_model_of_that_name() {
        for name in MODELS {
            assert_eq!(named_model(name).map(|model| model.name.into_owned()).as_deref(), Some(*name));
        }
        assert_eq!(named_model("llama"), None);
    }
}
