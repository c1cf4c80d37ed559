"""SearchQA: answer a question by searching a collection of passages, over several turns."""
