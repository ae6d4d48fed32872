"""How the embedded nano voice is made: text, teacher audio, codes, language model, codec, export.

``python -m training --help`` lists the stages; README.md in this folder says what each needs and
how long it takes. Nothing here is part of the installed package.
"""
