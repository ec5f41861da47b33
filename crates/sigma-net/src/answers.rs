//! Temporary responses: to an authority that checks a proof during a certificate order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Responses by question: written by the control thread, read by workers.
#[derive(Debug)]
pub struct Answers<V> {
    /// Set while there is a response; otherwise workers read no further.
    is_asked: AtomicBool,
    answers: RwLock<HashMap<Box<str>, V>>,
}

impl<V> Default for Answers<V> {
    fn default() -> Self {
        Answers { is_asked: AtomicBool::new(false), answers: RwLock::default() }
    }
}

/// A response is given as long as this exists.
#[derive(Debug)]
#[must_use]
pub struct PublishedResponse<V> {
    answers: Arc<Answers<V>>,
    question: Box<str>,
}

impl<V> Answers<V> {
    /// Sets the response to `question`.
    pub fn give(self: &Arc<Self>, question: &str, answer: V) -> PublishedResponse<V> {
        self.write(|answers| drop(answers.insert(question.into(), answer)));
        PublishedResponse { answers: Arc::clone(self), question: question.into() }
    }

    /// Returns true if there is any response.
    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    fn write(&self, change: impl FnOnce(&mut HashMap<Box<str>, V>)) {
        let mut answers = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut answers);
        self.is_asked.store(!answers.is_empty(), Ordering::Release);
    }
}

impl<V: Clone> Answers<V> {
    /// Returns the response to exactly this `question`.
    pub fn get(&self, question: &str) -> Option<V> {
        if !self.is_asked() {
            return None;
        }
        self.answers.read().unwrap_or_else(PoisonError::into_inner).get(question).cloned()
    }
}

impl<V> Drop for PublishedResponse<V> {
    fn drop(&mut self) {
        self.answers.write(|answers| drop(answers.remove(&self.question)));
    }
}
