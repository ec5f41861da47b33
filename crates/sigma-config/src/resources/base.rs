//! The fields that most kinds of resources have, defined once.

/// Defines a kind of resource. The square brackets select the shared fields; the kind's own fields come before and
/// after them. All fields are members of one struct, because a flattened struct would be parsed twice.
macro_rules! resource {
    ($(#[$meta:meta])* pub struct $kind:ident [$($field:ident)*] { $($own:tt)* }) => {
        resource! { @ [$($field)*] {} { $($own)* } $(#[$meta])* $kind }
    };
    ($(#[$meta:meta])* pub struct $kind:ident { $($first:tt)* } [$($field:ident)*] { $($own:tt)* }) => {
        resource! { @ [$($field)*] { $($first)* } { $($own)* } $(#[$meta])* $kind }
    };
    (@ [id $($more:ident)*] { $($done:tt)* } $($rest:tt)*) => {
        resource! { @ [$($more)*] { $($done)*
            /// The id; unset in a file: the position (`arr_1`, …).
            #[serde(skip_serializing_if = "Id::is_empty")]
            pub id: Id,
        } $($rest)* }
    };
    (@ [name $($more:ident)*] { $($done:tt)* } $($rest:tt)*) => {
        resource! { @ [$($more)*] { $($done)*
            /// Name for display.
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
            /// Creation time in Unix seconds.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub create_time: Option<UnixTime>,
            /// Time of the last change in Unix seconds.
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
