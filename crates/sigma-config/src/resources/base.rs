//! The fields that resources of nearly every kind have, described once.

/// A kind of resource: which of the fields that many kinds have it has, in square brackets, and its own
/// before and behind them. All are members of the one struct: a flattened one would be read twice.
macro_rules! resource {
    ($(#[$meta:meta])* pub struct $kind:ident [$($field:ident)*] { $($own:tt)* }) => {
        resource! { @ [$($field)*] {} { $($own)* } $(#[$meta])* $kind }
    };
    ($(#[$meta:meta])* pub struct $kind:ident { $($first:tt)* } [$($field:ident)*] { $($own:tt)* }) => {
        resource! { @ [$($field)*] { $($first)* } { $($own)* } $(#[$meta])* $kind }
    };
    (@ [id $($more:ident)*] { $($done:tt)* } $($rest:tt)*) => {
        resource! { @ [$($more)*] { $($done)*
            /// Identity; unset in a file: the position (`arr_1`, …).
            #[serde(skip_serializing_if = "Id::is_empty")]
            pub id: Id,
        } $($rest)* }
    };
    (@ [name $($more:ident)*] { $($done:tt)* } $($rest:tt)*) => {
        resource! { @ [$($more)*] { $($done)*
            /// Name for people.
            #[serde(skip_serializing_if = "Option::is_none")]
            #[schemars(with = "String", length(min = 1, max = 256))]
            pub name: Option<Box<str>>,
        } $($rest)* }
    };
    (@ [about $($more:ident)*] { $($done:tt)* } $($rest:tt)*) => {
        resource! { @ [$($more)*] { $($done)*
            /// Description.
            #[serde(skip_serializing_if = "Option::is_none")]
            #[schemars(with = "String", length(max = 256))]
            pub desc: Option<Box<str>>,
            /// Labels.
            #[serde(skip_serializing_if = "Optional::is_unset")]
            #[schemars(with = "sigma_schema::forms::LabelMap")]
            pub labels: Labels,
        } $($rest)* }
    };
    (@ [times] { $($done:tt)* } $($rest:tt)*) => {
        resource! { @ [] { $($done)*
            /// When it was created, in Unix seconds.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub create_time: Option<UnixTime>,
            /// When it was changed last, in Unix seconds.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub update_time: Option<UnixTime>,
        } $($rest)* }
    };
    (@ [] { $($done:tt)* } { $($own:tt)* } $(#[$meta:meta])* $kind:ident) => {
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        $(#[$meta])*
        pub struct $kind {
            $($done)*
            $($own)*
        }
    };
}
