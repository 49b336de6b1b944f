"""Questions that people put to an assistant, with gaps for WordNet's words and the standard library's code."""

PEOPLE = [
    "a child of eight", "a beginner", "a high school student", "my grandmother", "a busy manager", "an expert",
    "a new colleague", "a tourist", "a customer", "my landlord", "a college student", "a friend", "my boss", "a patient",
]  # fmt: skip
LANGUAGES = ["French", "Spanish", "German", "Italian", "Portuguese", "Dutch", "Latin", "English"]
STYLES = [
    "formal", "friendly", "funny", "poetic", "simple", "professional", "dramatic", "concise", "persuasive",
    "sarcastic", "more detailed", "conversational", "academic", "optimistic",
]  # fmt: skip
TOPICS = [
    "time management", "healthy eating", "learning a language", "saving money", "job interviews", "climate change",
    "machine learning", "artificial intelligence", "space travel", "the water cycle", "photosynthesis", "world history",
    "the French Revolution", "gardening", "cooking pasta", "making bread", "running a marathon", "stress", "sleep",
    "public speaking", "writing a novel", "starting a small business", "marketing", "social media", "e-mail etiquette",
    "remote work", "teamwork", "leadership", "parenting", "dog training", "cats", "travelling alone", "camping",
    "photography", "music theory", "playing the guitar", "chess", "football", "yoga", "meditation", "first aid",
    "insurance", "investing", "taxes", "mortgages", "inflation", "supply and demand", "democracy", "human rights",
    "the immune system", "vaccines", "diabetes", "mental health", "nutrition", "electric cars", "solar energy",
    "recycling", "the internet", "encryption", "databases", "Python", "JavaScript", "web design", "cloud computing",
    "gravity", "black holes", "evolution", "DNA", "the periodic table", "probability", "statistics", "algebra",
    "geometry", "calculus", "philosophy", "ethics", "Shakespeare", "poetry", "painting", "architecture", "film",
    "video games", "customer service", "project management", "data analysis", "spreadsheets", "research papers",
    "friendship", "relationships", "grief", "happiness", "motivation", "habits", "procrastination", "creativity",
]  # fmt: skip
CHAT = [
    "What is {noun}?", "What is a {noun}?", "What is the difference between {noun} and {other}?", "Explain {noun}.",
    "Explain {topic} to {person}.", "Explain {noun} to {person}.", "Tell me about {proper}.", "Who or what is {proper}?",
    "Give me {number} facts about {proper}.", "Give me {number} tips for {topic}.", "List {number} kinds of {noun}.",
    "Write a short story about a {noun} and a {other}.", "Write a poem about {noun}.", "Write a haiku about a {noun}.",
    "Write a {style} e-mail to {person} about {noun}.", "Write a {style} paragraph about {topic}.",
    "Write an essay on {topic}.", "Write an introduction for a blog post about {topic}.", "How do I {verb} a {noun}?",
    "How can I get better at {topic}?", "How does {noun} work?", "Why is {topic} important?", "Why do people {verb}?",
    "Why do people like {noun}?", "What are the pros and cons of {noun}?", "What are the main ideas of {topic}?",
    "Compare {noun} with {other} in a table.", "Summarize what is known about {topic} in {number} sentences.",
    "Name {number} things that have to do with {noun}, {other} and {third}.", "Use the word '{noun}' in a sentence.",
    "What does '{verb}' mean?", "Give me {number} synonyms for '{verb}'.", "Translate into {language}: {sentence}",
    "What is meant by this: \"{sentence}\"?", "Continue this story: {sentence}", "Make up a dialogue about {noun}.",
    "I want to learn about {topic}. Where should I start?", "Give me a plan for {topic} for {number} weeks.",
    "Can you help me with {topic}?", "What should I know about {noun} before I {verb}?", "Is {noun} good or bad?",
    "Act as {person} and talk with me about {noun}.", "You are an expert on {topic}. Give me {number} pieces of advice.",
    "Write a product description for a {noun}.", "Write {number} interview questions about {topic}.",
    "Make a quiz of {number} questions about {topic}, with answers.", "Come up with {number} names for a {noun} shop.",
    "Write a speech about {topic}.", "Write a recipe that uses {noun}.", "Describe a {noun} in a {style} way.",
    "What would happen if there were no {noun}?", "Write a letter to {person} asking for a {noun}.",
    "Give me an outline of a presentation on {topic}.", "What is the history of {noun}?", "What causes {noun}?",
    "Write a joke about a {noun}.", "Write song lyrics about {noun} and {other}.", "Define {noun} and give an example.",
    "Where can one find a {noun}?", "When was {proper} and what is it known for?", "What is {proper} famous for?",
    "Tell me a fun fact about {noun}.", "Write {number} tweets about {topic}.", "Write a review of a {noun}.",
    "I have a problem with my {noun}. What should I do?", "I feel bad about {topic}. What can I do?",
    "Create a table of {number} kinds of {noun} with two properties each.", "Write a short biography of {proper}.",
    "If I have {number} {noun}s and give away two, how many are left? Explain.", "Rank {noun}, {other} and {third}.",
    "Write a dialogue between a {noun} and a {other}.", "What are common mistakes in {topic}?", "hi", "Hello!",
    "Tell me something about {topic} that few people know.", "Write step-by-step instructions to {verb} a {noun}.",
    "Classify these into groups: {noun}, {other}, {third}, {verb}.", "What is the meaning of {topic} in daily life?",
    "Brainstorm {number} ideas for {topic}.", "Write a cover letter for a job that has to do with {noun}.",
    "Write a press release about a new {noun}.", "What questions should I ask {person} about {topic}?",
]  # fmt: skip
EDIT = [
    "Fix the grammar and spelling of this text:\n\n{text}", "Rewrite this text in a {style} style:\n\n{text}",
    "Repeat this text word for word:\n\n{text}", "Replace '{old}' by '{new}' in this text:\n\n{text}",
    "Summarize this text:\n\n{text}", "Make this text shorter:\n\n{text}", "Translate this into {language}:\n\n{text}",
    "Turn this text into a bulleted list:\n\n{text}", "Put these lines into alphabetical order:\n\n{text}",
    "Proofread the following and return the corrected text only.\n\n{text}", "Write this text in capitals:\n\n{text}",
    "Copy this text and change every '{old}' to '{new}':\n\n{text}", "Add a title to this text:\n\n{text}",
    "Here is a text.\n\n{text}\n\nRewrite it so that '{old}' isn't in it.", "Number these lines:\n\n{text}",
    "Correct this:\n{text}", "Rewrite: {text}", "{text}\n\nRepeat the above exactly.", "Improve this:\n\n{text}",
]  # fmt: skip
PROGRAMMING = [
    "Python", "Python", "Python", "Python", "Python 3", "Python", "JavaScript", "Java", "C++", "C", "SQL", "bash", "Go",
]
TASKS = [
    "sorts a list of numbers", "reverses a linked list", "reads a CSV file and prints its columns", "merges two lists",
    "counts the vowels in a text", "finds the largest element of a list", "computes the area of a circle",
    "converts Celsius to Fahrenheit", "parses a date", "sends an HTTP request and prints the answer",
    "downloads a web page", "generates a random password", "plays rock, paper, scissors", "solves a quadratic equation",
    "implements a queue with two stacks", "implements binary search", "implements a bank account", "draws a bar chart",
    "reads JSON and prints one field", "walks a folder and lists all files", "counts words in a file",
    "validates an e-mail address", "finds duplicates in a list", "computes the mean and the median of a list",
    "implements a simple calculator", "connects to a database and runs a query", "writes a log file",
    "implements a least-recently-used cache", "finds the shortest path in a graph", "transposes a matrix",
    "multiplies two matrices", "computes compound interest", "converts a number to Roman numerals",
    "finds all anagrams in a list of words", "groups dictionaries by a key", "flattens a nested list",
    "checks whether brackets are balanced", "simulates the throw of dice", "implements a tic-tac-toe board",
    "trains a linear regression", "loads an image and resizes it", "prints a multiplication table",
    "implements a to-do list", "rotates a list by k places", "removes punctuation from a text", "zips two files",
    "starts a thread and waits for it", "computes a checksum of a file", "implements a binary tree with insert",
    "removes stop words from a sentence", "formats a table of names and ages", "computes prime factors of a number",
]  # fmt: skip
WRITE = [
    "Write a {programming} function that {task}.", "Write a {programming} program that {task}.",
    "Write a Python function called {name} that {purpose}.", "Write code in {programming} that {task}, with comments.",
    "How do I write a {programming} function that {task}?", "Give me a {programming} class that {task}.",
    "Write a Python function to {spoken}.", "Write a Python class for {spoken}.", "Write unit tests for a function that {task}.",
    "Implement a function that {task} in {programming} and explain it.", "Show me an example of {spoken} in {programming}.",
    "Write a {programming} script that {task}. Add a docstring and an example.", "What does {spoken} mean in programming?",
    "Write a Python function that {purpose}. Include type hints.", "In {programming}, how can one write something that {task}?",
]  # fmt: skip
COMPLETE = [
    "Complete this Python function:\n\n```python\n{code}\n```", "Finish this code:\n\n{code}",
    "Implement the body of this function. Answer with code only.\n\n```python\n{code}\n```",
    "Write the rest of this:\n```python\n{code}\n```", "{code}\n\nComplete the code above.",
]
CHANGE = [
    "Add a docstring to this function:\n\n```python\n{code}\n```", "Explain this code:\n\n```python\n{code}\n```",
    "Add type hints to this code and return the whole code:\n\n```python\n{code}\n```",
    "Rename {name} to {new} in this code:\n\n```python\n{code}\n```", "Repeat this code exactly:\n\n```python\n{code}```",
    "Find bugs in this code and fix them:\n\n```python\n{code}\n```", "Refactor this code:\n\n```python\n{code}\n```",
    "Add comments to every line of this code.\n\n```python\n{code}\n```", "Write tests for this:\n\n```python\n{code}\n```",
    "Make this code faster:\n\n```python\n{code}\n```", "Translate this code into JavaScript:\n\n```python\n{code}\n```",
    "What does this code do?\n\n{code}", "Add a print statement at the start of this:\n\n```python\n{code}\n```",
]  # fmt: skip
