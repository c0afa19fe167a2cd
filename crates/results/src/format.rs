//! How a value is written in a table, and the unit that its heading states.

use serde::Deserialize;
use serde_json::Value;

/// The unit and form of a column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// As it is.
    #[default]
    Text,
    /// As it is, in the type of code.
    Code,
    /// A whole number with thousands separated.
    Count,
    /// A number with the given digits.
    Number,
    /// A fraction, in percent.
    Percent,
    /// A fraction, in percent with its sign.
    Change,
    /// 1 - a fraction, in percent: how much less.
    Reduction,
    /// A quotient minus one, in percent with its sign.
    Above,
    /// Bytes.
    Bytes,
    /// Bytes, in MB (10⁶).
    Mb,
    /// Bytes, in GB (10⁹).
    Gb,
    /// Bytes, in MiB (2²⁰).
    Mib,
    /// Bytes, in GiB (2³⁰).
    Gib,
    /// Nanoseconds, in milliseconds.
    Ms,
    /// Nanoseconds, in seconds.
    Seconds,
    /// Yes or no.
    Yes,
}

impl Format {
    /// The unit, as it follows a number; empty where there is none.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Text | Self::Code | Self::Count | Self::Number | Self::Yes => "",
            Self::Percent | Self::Change | Self::Reduction | Self::Above => " %",
            Self::Bytes => " bytes",
            Self::Mb => " MB",
            Self::Gb => " GB",
            Self::Mib => " MiB",
            Self::Gib => " GiB",
            Self::Ms => " ms",
            Self::Seconds => " s",
        }
    }

    /// The number in this format's unit.
    #[must_use]
    pub fn scale(self, number: f64) -> f64 {
        match self {
            Self::Text | Self::Code | Self::Count | Self::Number | Self::Bytes | Self::Yes => number,
            Self::Percent | Self::Change => 100.0 * number,
            Self::Reduction => 100.0 * (1.0 - number),
            Self::Above => 100.0 * (number - 1.0),
            Self::Mb | Self::Ms => number / 1e6,
            Self::Gb | Self::Seconds => number / 1e9,
            Self::Mib => number / f64::from(1 << 20),
            Self::Gib => number / f64::from(1 << 30),
        }
    }

    const fn digits(self) -> usize {
        match self {
            Self::Text | Self::Code | Self::Count | Self::Bytes | Self::Yes => 0,
            Self::Percent | Self::Reduction | Self::Mib | Self::Mb | Self::Ms => 1,
            Self::Change | Self::Above | Self::Gb | Self::Gib | Self::Seconds | Self::Number => 2,
        }
    }

    /// Writes a value. What is missing is a dash.
    #[must_use]
    pub fn write(self, value: Option<&Value>, digits: Option<usize>) -> String {
        let Some(value) = value.filter(|value| !value.is_null()) else { return "–".to_owned() };
        match (self, value) {
            (Self::Code, Value::String(text)) => format!("`{text}`"),
            (Self::Code, value) => format!("`{value}`"),
            (Self::Yes, Value::Bool(yes)) => if *yes { "yes" } else { "no" }.to_owned(),
            (_, Value::String(text)) => text.clone(),
            (Self::Text, value) => value.to_string(),
            (_, value) => match value.as_f64() {
                Some(number) => self.write_number(number, digits),
                None => value.to_string(),
            },
        }
    }

    fn write_number(self, number: f64, digits: Option<usize>) -> String {
        let digits = digits.unwrap_or_else(|| self.digits());
        let scaled = self.scale(number);
        let signed = matches!(self, Self::Change | Self::Above);
        let text = format!("{:.*}", digits, scaled.abs());
        // What rounds to nothing has no sign.
        let zero = !text.bytes().any(|byte| byte.is_ascii_digit() && byte != b'0');
        let sign = match scaled < 0.0 {
            _ if zero => "",
            true => "−",
            false if signed => "+",
            false => "",
        };
        format!("{sign}{}", separate(&text))
    }
}

/// Separates thousands.
fn separate(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut out = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(format: Format, value: Value, text: &str) {
        assert_eq!(format.write(Some(&value), None), text);
    }

    #[test]
    fn values_are_written_in_their_units() {
        check(Format::Text, json!("VGG-16"), "VGG-16");
        check(Format::Code, json!("bo"), "`bo`");
        check(Format::Bytes, json!(1_048_576), "1,048,576");
        check(Format::Percent, json!(0.5137), "51.4");
        check(Format::Reduction, json!(0.4), "60.0");
        check(Format::Change, json!(0.071), "+7.10");
        check(Format::Change, json!(-0.071), "−7.10");
        check(Format::Change, json!(-0.000_001), "0.00");
        check(Format::Above, json!(1.002), "+0.20");
        check(Format::Mib, json!(3_145_728), "3.0");
        check(Format::Ms, json!(122_961_406), "123.0");
        check(Format::Seconds, json!(1_500_000_000_u64), "1.50");
        check(Format::Yes, json!(true), "yes");
        assert_eq!(Format::Percent.write(None, None), "–");
        assert_eq!(Format::Percent.write(Some(&Value::Null), None), "–");
        assert_eq!(Format::Number.write(Some(&json!(12_345.678)), Some(1)), "12,345.7");
    }
}
