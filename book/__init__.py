"""How the book is made: checks, both sites, notebooks for Colab."""
