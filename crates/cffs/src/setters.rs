//! Setters of option types.

/// Gives an option type a setter for each field, because a `#[non_exhaustive]` type cannot be written with
/// `..Default::default()` outside this crate. A setter has the name and the type of its field.
macro_rules! setters {
    ($options:ident { $($field:ident: $type:ty),* $(,)? }) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@", stringify!($options), "::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}
