//! The endpoint of an OpenTelemetry collector.

use std::str::FromStr;

use reqwest::Url;

/// Path of traces, of OTLP over HTTP.
const TRACES: &str = "/v1/traces";

/// URL of a collector that takes OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(Url);

impl OtlpEndpoint {
    /// URL to which traces are sent.
    pub(crate) fn traces_url(&self) -> String {
        let mut url = self.0.clone();
        let path = url.path().trim_end_matches('/').to_owned();
        if !path.ends_with(TRACES) {
            url.set_path(&format!("{path}{TRACES}"));
        }
        url.to_string()
    }

    pub(crate) fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }
}

impl FromStr for OtlpEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "the URL of a collector is needed, such as http://localhost:4318".to_owned();
        let url = Url::parse(text).map_err(|_| wrong())?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(wrong());
        }
        // The log and `candlepower config` show this setting.
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "leave the user and the password out; a collector on this machine can add them"
                    .into(),
            );
        }
        Ok(Self(url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_go_to_their_path() {
        for (text, expected) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
            ("https://a.example/otlp", "https://a.example/otlp/v1/traces"),
            ("https://a.example/otlp/v1/traces", "https://a.example/otlp/v1/traces"),
            ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ] {
            assert_eq!(text.parse::<OtlpEndpoint>().unwrap().traces_url(), expected);
        }
        for text in ["", "localhost:4318", "grpc://a:4317", "http://u:p@a", "http://", "/v1/traces"]
        {
            assert!(text.parse::<OtlpEndpoint>().is_err(), "{text}");
        }
    }
}
